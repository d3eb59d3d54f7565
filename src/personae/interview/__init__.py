"""PersonaGym: environments, questions, exemplars and answers."""
