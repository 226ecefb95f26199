"""Predictions over HTTP: models served by name, requests that arrive together predicted together."""
