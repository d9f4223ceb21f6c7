"""Programs around the core: command line, service, reports, reproduction, diagnosis, export and folders of images."""
