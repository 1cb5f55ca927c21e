//! Preference for HTML in `Accept` (RFC 9110 section 12.5.1).

use http::HeaderMap;
use http::header::ACCEPT;

use crate::message::weight::{MAX_WEIGHT, Weight, parse_weight};

/// The weights of a request for the two representations of a problem.
#[derive(Debug, Default)]
struct Weights {
    html: Weight,
    problem: Weight,
    json: Weight,
    application: Option<Weight>,
    any: Option<Weight>,
}

/// Returns whether the request lists `text/html` with a greater weight than any media type of a
/// problem in JSON, as browsers do. A wildcard stands for JSON, and so does no `Accept`.
pub fn prefers_html(headers: &HeaderMap) -> bool {
    let mut weights = Weights::default();
    for value in headers.get_all(ACCEPT) {
        let Ok(value) = value.to_str() else { continue };
        for member in value.split(',') {
            weights.add(member);
        }
    }
    let wildcard = weights.application.or(weights.any).unwrap_or(0);
    let json = weights.problem.max(weights.json).max(wildcard);
    weights.html > json
}

// === impl Weights ===

impl Weights {
    /// Adds a member of the list. A malformed one is ignored.
    fn add(&mut self, member: &str) {
        let mut parts = member.split(';');
        let name = parts.next().unwrap_or_default().trim_ascii();
        let weight = parts.find(|part| {
            let part = part.trim_ascii();
            part.starts_with("q=") || part.starts_with("Q=")
        });
        let Some(weight) = weight.map_or(Some(MAX_WEIGHT), parse_weight) else {
            return;
        };
        let is = |known: &str| name.eq_ignore_ascii_case(known);
        if is("text/html") {
            self.html = weight;
        } else if is("application/problem+json") {
            self.problem = weight;
        } else if is("application/json") {
            self.json = weight;
        } else if is("application/*") {
            self.application = Some(weight);
        } else if name == "*/*" {
            self.any = Some(weight);
        }
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use proptest::prelude::*;

    use super::*;

    fn prefers(values: &[&str]) -> bool {
        let values = values.iter().map(|value| {
            let value = HeaderValue::from_str(value).expect("a value");
            (ACCEPT, value)
        });
        prefers_html(&values.collect())
    }

    #[test]
    fn browsers_get_html_and_others_json() {
        // Chromium, Firefox and Safari send such values for a navigation.
        let chromium = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,\
            image/apng,*/*;q=0.8,application/signed-exchange;v=b3;q=0.7";
        let firefox = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8";
        for html in [
            chromium,
            firefox,
            "text/html",
            "TEXT/HTML; q=0.9, */*;q=0.1",
            "application/json;q=0.5, text/html;level=1;q=0.6",
            "text/html, application/json;q=0",
        ] {
            assert!(prefers(&[html]), "{html}");
        }
        for json in [
            "",
            "*/*",
            "application/json",
            "application/json, text/plain, */*",
            "text/html, application/json",
            "text/html;q=0.5, application/problem+json",
            "text/html, */*",
            "text/html;q=0",
            "text/html;q=2",
            "text/*",
            "application/xhtml+xml",
            "text/htmlx",
        ] {
            assert!(!prefers(&[json]), "{json}");
        }
        assert!(!prefers(&[]));
        assert!(!prefers(&["text/html;q=0.3", "application/json"]));
        assert!(prefers(&["application/json;q=0.2", "text/html;q=0.3"]));
    }

    proptest! {
        #[test]
        fn any_value_is_read_without_a_panic(value in "[ -~]{0,80}") {
            let _ = prefers(&[&value]);
        }
    }
}
