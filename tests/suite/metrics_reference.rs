//! The reference of metrics, `docs/reference/metrics.md`, compared with what running processes serve.

use std::collections::{BTreeMap, BTreeSet};

use postern_harness::{Client, Installation, paths};

/// The type and the label names of a metric.
type Family = (String, BTreeSet<String>);

/// A sample of the text format.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    /// With the suffix of histograms.
    pub(crate) name: String,
    pub(crate) labels: BTreeMap<String, String>,
    /// The name and the type of its metric.
    family: (String, String),
    pub(crate) value: f64,
}

impl Sample {
    pub(crate) fn is_gauge(&self) -> bool {
        self.family.1 == "gauge"
    }
}

/// Parses the text format.
pub(crate) fn samples(text: &str) -> Vec<Sample> {
    let (mut samples, mut family) = (Vec::new(), Default::default());
    for line in text.lines() {
        if let Some(declared) = line.strip_prefix("# TYPE ") {
            let (name, kind) = declared.split_once(' ').expect("a name and a type");
            family = (name.to_owned(), kind.to_owned());
        } else if let (false, Some((series, value))) =
            (line.starts_with('#'), line.rsplit_once(' '))
        {
            let (name, text) = series.split_once('{').unwrap_or((series, ""));
            samples.push(Sample {
                name: name.to_owned(),
                labels: labels(text.trim_end_matches('}')),
                family: family.clone(),
                value: value.parse().expect("a number"),
            });
        }
    }
    samples
}

/// Returns the labels of a sample or a selector: `a="b",c="d"`.
pub(crate) fn labels(text: &str) -> BTreeMap<String, String> {
    let pairs = text.trim_end_matches('"').split("\",");
    let pairs = pairs.filter_map(|pair| pair.split_once("=\""));
    pairs
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

/// Returns the metrics in a text.
fn families(text: &str) -> BTreeMap<String, Family> {
    let mut families = BTreeMap::new();
    for Sample { labels, family, .. } in samples(text) {
        let of_name = families.entry(family.0);
        let found: &mut Family = of_name.or_insert_with(|| (family.1, BTreeSet::new()));
        found
            .1
            .extend(labels.into_keys().filter(|label| label != "le"));
    }
    families
}

/// Returns the metrics of the reference: the rows of its tables. A label may be followed by its
/// values in parentheses.
pub(crate) fn documented() -> BTreeMap<String, Family> {
    let page = paths::read("docs/reference/metrics.md");
    let mut all = BTreeMap::new();
    for row in page.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        assert!(cells.len() >= 4, "a row has four cells: {row}");
        let name = cells[0].trim_matches('`').to_owned();
        let mut labels = String::new();
        let mut depth = 0_u32;
        for character in cells[2].chars() {
            match character {
                '(' => depth += 1,
                ')' => depth = depth.saturating_sub(1),
                _ if depth == 0 => labels.push(character),
                _ => {}
            }
        }
        let is_name = |label: &&str| label.chars().any(|letter| letter.is_ascii_alphabetic());
        let labels = labels
            .split(',')
            .map(|label| label.trim().trim_matches('`'));
        let labels = labels.filter(is_name).map(str::to_owned).collect();
        let before = all.insert(name.clone(), (cells[1].to_owned(), labels));
        assert!(before.is_none(), "{name} is documented twice");
    }
    all
}

/// Returns the text of all sources of the workspace.
fn sources() -> String {
    let files = paths::rust_files(&paths::repository()).into_iter();
    files
        .map(|file| std::fs::read_to_string(file).expect("a source"))
        .collect()
}

/// Asserts that the reference has the metrics of all processes, which have served requests.
pub(crate) async fn assert_documented(split: &Installation) {
    let (client, code) = (split.surface().client(), "authentication_required");
    client.denied("/no-such-path", 401, code).await;
    let documented = documented();
    let (mut wrong, mut served) = (Vec::new(), BTreeSet::new());
    for (process, port) in split.admin_ports() {
        let admin = Client::new(&format!("http://127.0.0.1:{port}"));
        let text = admin.fetch("/metrics", 200).await.text();
        for (name, family) in families(&text) {
            let expected = documented.get(&name);
            if expected != Some(&family) {
                let difference = format!("{family:?}, documented: {expected:?}");
                wrong.push(format!("{process}: {name} {difference}"));
            }
            served.insert(name);
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    // Metrics with labels that nothing has counted are not served, but their names are in the source.
    let sources = sources();
    let is_known = |name: &str| served.contains(name) || sources.contains(&format!("\"{name}\""));
    let unknown: Vec<_> = documented.keys().filter(|name| !is_known(name)).collect();
    assert!(unknown.is_empty(), "in no process: {unknown:?}");
    assert!(served.len() > 40, "most are served: {served:?}");
}

#[test]
fn text_format_is_parsed_with_types_and_labels() {
    let text = "# HELP a_total Help\n# TYPE a_total counter\na_total{b=\"x,y=\\\"}\",c=\"z\"} 1\n\
                # TYPE d_seconds histogram\nd_seconds_bucket{e=\"f\",le=\"0.5\"} 2\n";
    let family = |kind: &str, labels: &[&str]| {
        let labels = labels.iter().map(ToString::to_string);
        (kind.to_owned(), labels.collect::<BTreeSet<_>>())
    };
    let expected = [
        ("a_total".to_owned(), family("counter", &["b", "c"])),
        ("d_seconds".to_owned(), family("histogram", &["e"])),
    ];
    assert_eq!(families(text), BTreeMap::from(expected));
}
