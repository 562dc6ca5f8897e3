"""A run as people see it, live or finished: `secureafl watch` in the terminal, `secureafl dashboard` in the browser.

Both stand on one `RunReader`, which reads the run's database and never writes. Only `view.web` needs a web server.
"""
