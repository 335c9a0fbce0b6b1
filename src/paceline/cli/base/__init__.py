"""Parts that several commands share: options, settings, files, outputs, error messages, and command groups."""
