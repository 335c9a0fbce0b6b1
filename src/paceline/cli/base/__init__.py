"""What several verbs share: options, settings, files, outputs, messages of mistakes, and groups of verbs."""
