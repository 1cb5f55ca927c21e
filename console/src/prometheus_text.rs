//! A parser of the Prometheus text format 0.0.4.

/// A time series at one instant.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Series {
    pub(crate) name: String,
    pub(crate) labels: Vec<(String, String)>,
    pub(crate) value: f64,
}

/// All time series of a process at one instant.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scrape(pub(crate) Vec<Series>);

// === impl Series ===

impl Series {
    /// Returns the value of a label; empty if it is absent.
    pub(crate) fn label(&self, name: &str) -> &str {
        let found = self.labels.iter().find(|(known, _)| known == name);
        found.map_or("", |(_, value)| value.as_str())
    }

    /// Returns name and labels, by which the series is the same in the next scrape.
    pub(crate) fn key(&self) -> String {
        format!("{} {:?}", self.name, self.labels)
    }
}

// === impl Scrape ===

impl Scrape {
    /// Parses a response of `/metrics`. Lines that are not in the format are left out.
    pub(crate) fn parse(text: &str) -> Self {
        let lines = text.lines().map(str::trim_start);
        let series = lines.filter(|line| !line.starts_with('#'));
        Self(series.filter_map(parse_line).collect())
    }

    /// Returns the series of a metric.
    pub(crate) fn of<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Series> {
        self.0.iter().filter(move |series| series.name == name)
    }

    /// Returns the value of a metric without labels, or of its first series.
    pub(crate) fn value(&self, name: &str) -> Option<f64> {
        self.of(name).next().map(|series| series.value)
    }
}

fn parse_line(line: &str) -> Option<Series> {
    let end = line.find(|character: char| character == '{' || character.is_whitespace())?;
    let (name, mut rest) = line.split_at(end);
    if name.is_empty() {
        return None;
    }
    let mut labels = Vec::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = parse_labels(inside, &mut labels)?;
    }
    // A timestamp may follow.
    let value = rest.split_whitespace().next()?.parse().ok()?;
    Some(Series {
        name: name.to_owned(),
        labels,
        value,
    })
}

/// Reads labels up to the closing brace and returns what follows it.
fn parse_labels<'a>(mut rest: &'a str, labels: &mut Vec<(String, String)>) -> Option<&'a str> {
    loop {
        rest = rest.trim_start_matches([',', ' ']);
        if let Some(after) = rest.strip_prefix('}') {
            return Some(after);
        }
        let (name, quoted) = rest.split_at(rest.find("=\"")?);
        // A value with its quotation marks, whose escapes are those of JSON.
        let quoted = &quoted[1..];
        let mut values = serde_json::Deserializer::from_str(quoted).into_iter::<String>();
        labels.push((name.trim().to_owned(), values.next()?.ok()?));
        rest = &quoted[values.byte_offset()..];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_values_and_escapes_are_parsed() {
        let text = "# HELP a text\n# TYPE a counter\na{x=\"1\",y=\"b\\\"c\\\\d\\ne}\"} 4.5 1700000000\n\
                    b 3\nc_bucket{le=\"+Inf\"} +Inf\n";
        let scrape = Scrape::parse(text);
        assert_eq!(scrape.0.len(), 3);
        let first = scrape.of("a").next().expect("a");
        assert_eq!((first.label("x"), first.label("y")), ("1", "b\"c\\d\ne}"));
        assert_eq!(first.value, 4.5);
        assert_eq!(scrape.value("b"), Some(3.0));
        assert_eq!(scrape.value("c_bucket"), Some(f64::INFINITY));
    }

    #[test]
    fn malformed_lines_are_left_out() {
        let text = "a{x=\"1 2\na{x} 1\n{} 1\na\nb x\n\u{0}\nd{x=\"\\\nok 1\n";
        let scrape = Scrape::parse(text);
        assert_eq!(scrape.0.len(), 1, "{scrape:?}");
    }
}
