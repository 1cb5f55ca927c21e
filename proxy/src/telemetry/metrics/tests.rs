//! The reference of metrics, compared with the metrics.

use std::collections::BTreeMap;

use super::*;

/// Returns the metrics of the section "Gateway" of the reference, with their labels.
fn documented() -> BTreeMap<String, Vec<String>> {
    let page = include_str!("../../../../docs/reference/metrics.md");
    let section = page
        .split("\n## ")
        .find(|part| part.starts_with("Gateway\n"));
    // Every process has a metric of spans of its own.
    let spans = page
        .lines()
        .filter(|row| row.starts_with("| `postern_spans_"));
    let rows = section.expect("a section").lines().chain(spans);
    let rows = rows.filter_map(|row| row.strip_prefix("| `"));
    rows.map(|row| {
        let cells: Vec<&str> = row.split(" | ").map(str::trim).collect();
        // An empty cell is `| |`.
        let labels = cells[1..].iter().find(|cell| cell.starts_with('`'));
        let labels = labels.filter(|_| cells.len() == 4);
        let labels = labels.map(|cell| cell.split(", ").map(|name| name.replace('`', "")));
        let mut labels: Vec<String> = labels.map(Iterator::collect).unwrap_or_default();
        labels.sort();
        (cells[0].replace('`', ""), labels)
    })
    .collect()
}

#[test]
fn reference_lists_every_metric_with_its_labels() {
    let families = GatewayMetrics::new().expect("metrics").families;
    let registered: BTreeMap<_, _> = families
        .into_iter()
        .map(|(name, mut labels)| {
            labels.sort();
            (name, labels)
        })
        .collect();
    assert_eq!(registered, documented());
}
