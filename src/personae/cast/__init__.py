"""One model, many characters: each in its own block, and a router that finds whom a text asks for.

Source: Neeko (Yu et al. 2024). What is heavy (torch) is imported inside functions.
"""
