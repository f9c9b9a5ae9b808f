"""Settings by name, a YAML file each; `erpcnet.config.presets` reads them."""
