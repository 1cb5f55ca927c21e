//! Checks of the commented-out settings in the shipped configuration files.

use postern_common::config::{Env, parse};
use postern_common::identity::IdentityConfig;
use postern_tests::config_file::ConfigFile;

/// Returns the commented lines from `# [identity]` to the end of a file, without comment marks and
/// prose.
fn commented_identity(file: &str) -> String {
    let text = ConfigFile::of_repository(file).text().to_owned();
    let from = text
        .find("# [identity]")
        .unwrap_or_else(|| panic!("{file} does not show [identity]"));
    let lines = text[from..]
        .lines()
        .map(|line| line.trim_start_matches("# "));
    let settings = lines.filter(|line| line.starts_with('[') || line.contains(" = "));
    settings.collect::<Vec<_>>().join("\n")
}

#[test]
fn commented_identity_settings_are_valid() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for file in ["auth.toml", "notify.toml"] {
        let here = format!("{}/", folder.path().display());
        let text = commented_identity(file).replace("/run/secrets/", &here);
        for secret in ["actor-client", "service-client", "service-account"] {
            std::fs::write(folder.path().join(secret), "sesame\n")
                .expect("the folder can be written");
        }
        let config = parse(file, &text, |root| {
            IdentityConfig::read(root, &Env::default())
        });
        let config = config.unwrap_or_else(|exit| panic!("{file}: {exit}\n{text}"));
        assert_eq!(config.actor.pool_id, "us-west-2_XXXXXXXXX");
        assert!(config.service_account.is_some(), "{file}");
    }
}
