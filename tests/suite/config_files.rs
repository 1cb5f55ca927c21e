//! Checks of the shipped configuration files and of the JSON schemas that the programs print.

use jsonschema::Validator;
use postern_harness::config_file::ConfigFile;
use postern_harness::process::Program;
use serde_json::{Value, json};

/// Returns the validator of the schema that a program prints.
async fn validator(program: &str) -> Validator {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let program = Program::of_workspace(program, folder.path());
    let ended = program.arg("schema").run().await;
    assert_eq!(ended.status, Some(0), "{}", ended.stderr);
    let schema: Value = serde_json::from_str(&ended.stdout).expect("JSON");
    jsonschema::draft202012::new(&schema).expect("a valid schema")
}

#[tokio::test]
async fn shipped_files_are_valid_by_the_schemas() {
    for (program, file) in [
        ("postern-proxy", "proxy.toml"),
        ("postern-auth", "auth.toml"),
        ("postern-notify", "notify.toml"),
    ] {
        let validator = validator(program).await;
        let text = ConfigFile::of_repository(file).text().to_owned();
        let value: Value = toml::from_str(&text).expect("TOML");
        let mut errors = validator.iter_errors(&value);
        let error = errors
            .next()
            .map(|error| format!("{}: {error}", error.instance_path()));
        assert_eq!(error, None, "{file}");
    }
}

#[tokio::test]
async fn schema_rejects_wrong_keys_types_and_values() {
    let validator = validator("postern-proxy").await;
    let shipped = ConfigFile::of_repository("proxy.toml").text().to_owned();
    let shipped: Value = toml::from_str(&shipped).expect("TOML");
    for (pointer, key, wrong) in [
        ("", "route_", json!([])),
        ("", "workers", json!(0)),
        ("", "listen", json!([])),
        ("/limits", "head_timeut", json!("1s")),
        ("/limits", "head_timeout", json!(1)),
        ("/limits", "head_timeout", json!("1 s")),
        ("/limits", "head_bytes", json!("1KB")),
        ("/route/0", "policy", json!("private")),
        ("/route/0", "policy", json!({"user": "any"})),
        ("/route/0", "methods", json!(["get"])),
        ("/route/0", "methods", json!([])),
        ("/route/0", "retries", json!(6)),
        ("/route/0", "prefix", json!("/a")),
        ("/group/0", "path", json!("/a")),
        ("/group/0", "policy", json!("private")),
        ("/group/0/route/0", "policy", json!("private")),
        ("/group/0/route/0", "polcy", json!("public")),
        ("/group/0/test/0", "decision", json!(7)),
    ] {
        let mut value = shipped.clone();
        if value.pointer(pointer).is_none() {
            value[pointer.trim_start_matches('/')] = json!({});
        }
        value.pointer_mut(pointer).expect("a table")[key] = wrong.clone();
        assert!(!validator.is_valid(&value), "{pointer}/{key} = {wrong}");
    }
}
