//! The files that are made from the table.

use std::path::Path;

use super::*;

/// Asserts that a file has this text. With the variable `POSTERN_TEST_WRITE_CONDITIONS`, writes it.
fn assert_written(path: &str, make: impl Fn(&str) -> String) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    let text = std::fs::read_to_string(&path).expect("a file");
    let made = make(&text);
    if std::env::var_os("POSTERN_TEST_WRITE_CONDITIONS").is_some() {
        std::fs::write(&path, &made).expect("written");
    }
    let text = std::fs::read_to_string(&path).expect("a file");
    let path = path.display();
    assert!(
        text == made,
        "{path}: run this test with POSTERN_TEST_WRITE_CONDITIONS=1"
    );
}

fn rule(condition: &Condition) -> String {
    let Condition {
        name,
        severity,
        title,
        description,
        lines: [head, _, expression, _],
        ..
    } = condition;
    let hold = match head.split(' ').nth(3) {
        Some("0m") | None => String::new(),
        Some(hold) => format!("        for: {hold}\n"),
    };
    let anchor = name.to_lowercase();
    format!(
        "      - alert: Postern{name}\n        expr: |\n          {expression}\n{hold}        labels:\n          severity: {severity}\n\
         \x20       annotations:\n          summary: {title}\n          description: \"{description}\"\n\
         \x20         runbook_url: https://postern.dev/docs/runbook.md#postern{anchor}\n"
    )
}

#[test]
fn alert_rules_are_those_of_the_table() {
    assert_written("../conf/observability/rules.yml", |text| {
        let first = format!("\n  - name: postern_{}\n", CONDITIONS[0].group);
        let mut made = text[..=text.find(&first).expect("alerts")].to_owned();
        let mut group = "";
        for condition in CONDITIONS.iter() {
            if condition.group != group {
                group = condition.group;
                let separator = if made.ends_with("\n\n") { "" } else { "\n" };
                made.push_str(&format!(
                    "{separator}  - name: postern_{group}\n    rules:\n"
                ));
            }
            made.push_str(&rule(condition));
        }
        made
    });
}

#[test]
fn meanings_of_the_runbook_are_those_of_the_table() {
    assert_written("../docs/runbook.md", |text| {
        let mut condition = None;
        let lines = text.lines().map(|line| {
            if let Some(name) = line.strip_prefix("### Postern") {
                condition = named(name);
            }
            let Some(condition) = condition.filter(|_| line.starts_with("- **Meaning.**")) else {
                return line.to_owned();
            };
            let described = condition.fill(|template| match template.strip_prefix("$labels.") {
                Some(label) => label.to_uppercase(),
                None => "N".to_owned(),
            });
            format!("- **Meaning.** {described}")
        });
        lines.collect::<Vec<_>>().join("\n") + "\n"
    });
}

#[test]
fn every_condition_has_a_remedy() {
    for condition in CONDITIONS.iter() {
        let text = remedy(condition.name);
        let text = text.unwrap_or_else(|| panic!("no remedy of {}", condition.name));
        let is_plain = !text.is_empty() && !text.contains(['`', '\n', '#']);
        assert!(is_plain, "{}: {text}", condition.name);
    }
}

#[test]
fn every_condition_is_judged() {
    for condition in CONDITIONS.iter() {
        let [_, sign, expression, _] = condition.lines;
        let is_judged = match condition.watch {
            Watch::Judged => sign == "-" && condition.page.starts_with('/'),
            Watch::Covered => named(sign).is_some_and(|by| by.watch != Watch::Covered),
            Watch::Above | Watch::Is | Watch::Rises | Watch::Ends => {
                // The alert reads the same metric, or a recorded ratio of it.
                let metric = condition.sign.as_ref().map_or("", |sign| &sign.name);
                let recorded = expression.starts_with("job:postern_auth_pool_errors:");
                let is_own = metric.starts_with("postern_") || metric.starts_with("process_");
                is_own && (expression.contains(metric) || recorded)
            }
        };
        assert!(is_judged, "{condition:?}");
    }
    let rows = include_str!("table.txt").matches("\n\n").count();
    assert_eq!(CONDITIONS.len(), rows, "each row is read");
}
