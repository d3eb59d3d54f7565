"""The world: scenes, characters that act, memory, a narrator (CharacterBox)."""
