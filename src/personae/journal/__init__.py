"""What was asked and answered: store, client, limits, resume, replay."""
