"""Tables, plots and pages of finished cells."""
