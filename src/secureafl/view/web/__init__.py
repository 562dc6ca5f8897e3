"""`secureafl dashboard`: a run in the browser. Needs the extra `ops`."""
