"""Cards in and out, lorebooks, the starter cast, importers."""
