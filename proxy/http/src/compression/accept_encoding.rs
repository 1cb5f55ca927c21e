//! Negotiation of the content coding (RFC 9110 section 12.5.3).

use http::HeaderMap;
use http::header::ACCEPT_ENCODING;

use crate::message::weight::weighted_members;

/// A content coding of responses (RFC 9110 section 8.4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentCoding {
    /// RFC 1952.
    Gzip,
    /// RFC 7932.
    Brotli,
}

/// The offered codings, preferred first.
const OFFERED: [ContentCoding; 2] = [ContentCoding::Brotli, ContentCoding::Gzip];

/// Returns the coding that the request prefers; the first one if it prefers several equally. Returns
/// `None` for the identity coding: none of them is acceptable, or identity is listed with a greater
/// weight.
///
/// A request that accepts nothing (`identity;q=0` without an offered coding) gets the identity
/// coding as well, which RFC 9110 section 12.5.3 permits.
pub fn negotiate(headers: &HeaderMap) -> Option<ContentCoding> {
    let members: Vec<_> = weighted_members(headers, ACCEPT_ENCODING).collect();
    let weight_of = |wanted: &str| {
        let is_wanted = |name: &str| {
            let name = if name.eq_ignore_ascii_case("x-gzip") {
                "gzip"
            } else {
                name
            };
            name.eq_ignore_ascii_case(wanted)
        };
        let found = members.iter().find(|(name, _)| is_wanted(name));
        found.map(|(_, weight)| *weight)
    };
    let mut best = None;
    for coding in OFFERED {
        let listed = weight_of(coding.as_str());
        let weight = listed.or(weight_of("*")).unwrap_or(0);
        if weight > best.map_or(0, |(_, weight)| weight) {
            best = Some((coding, weight));
        }
    }
    best.filter(|(_, weight)| *weight >= weight_of("identity").unwrap_or(0))
        .map(|(coding, _)| coding)
}

impl ContentCoding {
    /// Returns the name in `Accept-Encoding` and `Content-Encoding`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Brotli => "br",
        }
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use proptest::prelude::*;

    use super::*;

    fn negotiated(values: &[&str]) -> &'static str {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(
                ACCEPT_ENCODING,
                HeaderValue::from_str(value).expect("a value"),
            );
        }
        negotiate(&headers).map_or("identity", ContentCoding::as_str)
    }

    #[test]
    fn preferred_acceptable_coding_is_negotiated() {
        let identity = "|gzip;q=0|gzip;q=0.000|*;q=0|identity|identity, gzip;q=0.5|identity;q=0|gzip;q=0, gzip|\
            deflate, compress";
        let gzip = "gzip|GZIP|x-gzip|gzip;q=1.0, br;q=0.9|gzip ; q=0.001 |*;q=0, gzip|br;q=0, *;q=0.1|\
            identity;q=0.5, gzip;q=0.5|identity;q=0, gzip;q=0.1";
        let br = "gzip, br|gzip, deflate, br, zstd|*";
        for (all, want) in [(identity, "identity"), (gzip, "gzip"), (br, "br")] {
            for value in all.split('|') {
                assert_eq!(negotiated(&[value]), want, "{value}");
            }
        }
        assert_eq!(negotiated(&[]), "identity");
        assert_eq!(negotiated(&["gzip", "br", "zstd"]), "br");
    }

    #[test]
    fn malformed_weight_makes_a_coding_unacceptable() {
        let values = "gzip;q=2 gzip;q=1.001 gzip;q=0.1234 gzip;q=-1 gzip;q= gzip;q gzip;q=0,5x gzip;q=nan \
            gzip;q=1;q=0 gzip;x=1 gzip;q=1e0";
        for value in values.split(' ').chain(["gz ip", "\"gzip\""]) {
            assert_eq!(negotiated(&[value]), "identity", "{value}");
        }
        assert_eq!(negotiated(&["gzip;q=9, br"]), "br");
    }

    proptest! {
        #[test]
        fn any_value_is_parsed_without_a_panic(value in "[ -~]{0,60}") {
            let _coding = negotiated(&[&value]);
        }
    }
}
