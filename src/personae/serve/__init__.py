"""The OpenAI-compatible server through which people talk to the characters of a cast."""
