ALTER TABLE notify_result ADD COLUMN template_version INTEGER;
