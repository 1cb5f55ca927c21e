use super::*;

const BASE: &str = r#"a = 1
[t]
b = "x"
c = "y"
[[l]]
name = "n"
p = { d = 1 }
[[l]]
name = "m"
p = { d = 2 }
list = [1, 2]
[u.v]
w = 1
"#;

/// Returns the base with this text merged into it, as JSON.
fn over(text: &str) -> Result<serde_json::Value, Exit> {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("own.toml");
    std::fs::write(&path, text).expect("written");
    let layer = ConfigLayer::parse("base.toml", BASE)?.overlay(&path, &["fixed"]);
    let folder = format!("{}/", folder.path().display());
    let layer = layer.map_err(|exit| Exit::usage(exit.message().replace(&folder, "")))?;
    Ok(layer.root.to_json())
}

#[test]
fn overlay_merges_tables_and_replaces_values() {
    let merged = |text| over(text).expect("TOML");
    let json = merged(
        "a = 2\n[t]\nb = 'z'\n[[l]]\nname = 'm'\np = { e = 3 }\nlist = [3]\n[[l]]\nname = 'new'\n[u.v]\nx = 2\n",
    );
    let expected = serde_json::json!({
        "a": 2,
        "t": {"b": "z", "c": "y"},
        "l": [
            {"name": "n", "p": {"d": 1}},
            {"name": "m", "p": {"e": 3}, "list": [3]},
            {"name": "new"},
        ],
        "u": {"v": {"w": 1, "x": 2}},
    });
    assert_eq!(json, expected, "inline tables are replaced as a whole");
    let table = serde_json::json!({"b": "z"});
    assert_eq!(merged("t = { b = 'z' }\n")["t"], table);
    assert_eq!(merged("l = []\n")["l"], serde_json::json!([]));
    assert_eq!(merged("")["a"], 1);
}

#[test]
fn mistake_of_an_overlay_has_its_file_and_line() {
    for (text, reason) in [
        ("\na = = 1\n", "own.toml:2: "),
        (
            "a = 1\n[fixed]\nb = 1\n",
            "own.toml:2: fixed: cannot be overridden",
        ),
    ] {
        let exit = over(text).expect_err(reason);
        assert!(exit.message().starts_with(reason), "{exit}");
    }
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("own.toml");
    std::fs::write(&path, "\n[t]\nb = 7\n").expect("written");
    let base = ConfigLayer::parse("base.toml", BASE).expect("TOML");
    let layer = base.overlay(&path, &[]).expect("TOML");
    let wrong = layer.read(|root| {
        root.optional("a", |field| field.text(1..=9));
        root.section("t", |t| t.optional("b", |field| field.text(1..=9)));
        for name in ["l", "u"] {
            assert!(root.has(name));
        }
        Some(())
    });
    let message = wrong.expect_err("two mistakes").message().to_owned();
    let lines: Vec<&str> = message.lines().collect();
    assert!(lines[0].starts_with("base.toml:1: a: "), "{message}");
    let mistake = "own.toml:3: t.b: must be a string, not an integer";
    assert!(
        lines.iter().any(|line| line.ends_with(mistake)),
        "{message}"
    );
}
