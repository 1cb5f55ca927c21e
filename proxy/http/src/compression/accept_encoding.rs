//! Negotiation of the content coding (RFC 9110 section 12.5.3).

use http::HeaderMap;
use http::header::ACCEPT_ENCODING;

use crate::message::weight::{MAX_WEIGHT, Weight, parse_weight};

/// A content coding of responses (RFC 9110 section 8.4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentCoding {
    /// RFC 1952.
    Gzip,
    /// RFC 7932.
    Brotli,
    /// RFC 8878.
    Zstd,
}

/// The weights of a request; `None` for what it does not list.
#[derive(Debug, Default)]
struct Weights {
    gzip: Option<Weight>,
    brotli: Option<Weight>,
    zstd: Option<Weight>,
    identity: Option<Weight>,
    any: Option<Weight>,
}

/// Returns the coding of `offered` that the request prefers; the first one if it prefers several
/// equally. Returns `None` for the identity coding: none of them is acceptable, or identity is
/// listed with a greater weight.
///
/// A request that accepts nothing (`identity;q=0` without an offered coding) gets the identity
/// coding as well, which RFC 9110 section 12.5.3 permits.
pub fn negotiate(headers: &HeaderMap, offered: &[ContentCoding]) -> Option<ContentCoding> {
    let mut weights = Weights::default();
    for value in headers.get_all(ACCEPT_ENCODING) {
        let Ok(value) = value.to_str() else { continue };
        for member in value.split(',') {
            weights.add(member);
        }
    }
    let mut best = None;
    for coding in offered {
        let weight = weights.of(*coding);
        if weight > best.map_or(0, |(_, weight)| weight) {
            best = Some((*coding, weight));
        }
    }
    best.filter(|(_, weight)| *weight >= weights.identity.unwrap_or(0))
        .map(|(coding, _)| coding)
}

impl ContentCoding {
    /// Returns the name in `Accept-Encoding` and `Content-Encoding`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Brotli => "br",
            Self::Zstd => "zstd",
        }
    }
}

impl Weights {
    /// Adds a member of the list. A malformed one is ignored, and so is the second of a coding.
    fn add(&mut self, member: &str) {
        let (name, parameters) = match member.split_once(';') {
            Some((name, parameters)) => (name.trim_ascii(), Some(parameters)),
            None => (member.trim_ascii(), None),
        };
        let Some(weight) = parameters.map_or(Some(MAX_WEIGHT), parse_weight) else {
            return;
        };
        let is = |known: &str| name.eq_ignore_ascii_case(known);
        let known = if is("gzip") || is("x-gzip") {
            &mut self.gzip
        } else if is("br") {
            &mut self.brotli
        } else if is("zstd") {
            &mut self.zstd
        } else if is("identity") {
            &mut self.identity
        } else if name == "*" {
            &mut self.any
        } else {
            return;
        };
        known.get_or_insert(weight);
    }

    fn of(&self, coding: ContentCoding) -> Weight {
        let listed = match coding {
            ContentCoding::Gzip => self.gzip,
            ContentCoding::Brotli => self.brotli,
            ContentCoding::Zstd => self.zstd,
        };
        listed.or(self.any).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use proptest::prelude::*;

    use super::*;

    const ALL: [ContentCoding; 3] = [
        ContentCoding::Zstd,
        ContentCoding::Brotli,
        ContentCoding::Gzip,
    ];

    fn negotiated(values: &[&str], offered: &[ContentCoding]) -> &'static str {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(
                ACCEPT_ENCODING,
                HeaderValue::from_str(value).expect("a value"),
            );
        }
        negotiate(&headers, offered).map_or("identity", ContentCoding::as_str)
    }

    #[test]
    fn preferred_acceptable_coding_is_negotiated() {
        for (values, want) in [
            (&[][..], "identity"),
            (&[""], "identity"),
            (&["gzip"], "gzip"),
            (&["GZIP"], "gzip"),
            (&["x-gzip"], "gzip"),
            (&["gzip, br"], "br"),
            (&["gzip", "br", "zstd"], "zstd"),
            (&["gzip, deflate, br, zstd"], "zstd"),
            (&["gzip;q=1.0, br;q=0.9"], "gzip"),
            (&["gzip ; q=0.001 "], "gzip"),
            (&["gzip;q=0"], "identity"),
            (&["gzip;q=0.000"], "identity"),
            (&["*"], "zstd"),
            (&["*;q=0"], "identity"),
            (&["*;q=0, gzip"], "gzip"),
            (&["zstd;q=0, *"], "br"),
            (&["zstd;q=0, br;q=0, *;q=0.1"], "gzip"),
            (&["identity"], "identity"),
            (&["identity, gzip;q=0.5"], "identity"),
            (&["identity;q=0.5, gzip;q=0.5"], "gzip"),
            (&["identity;q=0"], "identity"),
            (&["identity;q=0, gzip;q=0.1"], "gzip"),
            (&["gzip;q=0, gzip"], "identity"),
            (&["deflate, compress"], "identity"),
        ] {
            assert_eq!(negotiated(values, &ALL), want, "{values:?}");
        }
        assert_eq!(negotiated(&["gzip, br"], &[ContentCoding::Gzip]), "gzip");
        assert_eq!(negotiated(&["br"], &[ContentCoding::Gzip]), "identity");
    }

    #[test]
    fn malformed_weight_makes_a_coding_unacceptable() {
        for value in [
            "gzip;q=2",
            "gzip;q=1.001",
            "gzip;q=0.1234",
            "gzip;q=-1",
            "gzip;q=",
            "gzip;q",
            "gzip;q=0,5x",
            "gzip;q=nan",
            "gzip;q=1;q=0",
            "gzip;x=1",
            "gzip;q=1e0",
            "gz ip",
            "\"gzip\"",
        ] {
            assert_eq!(negotiated(&[value], &ALL), "identity", "{value}");
        }
        assert_eq!(negotiated(&["gzip;q=9, br"], &ALL), "br");
    }

    proptest! {
        #[test]
        fn any_value_is_parsed_without_a_panic(value in "[ -~]{0,60}") {
            let _coding = negotiated(&[&value], &ALL);
        }
    }
}
