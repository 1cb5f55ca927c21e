//! Fuzzes headers of the PROXY protocol. The result must not depend on how the bytes arrive: a prefix
//! of an accepted header is incomplete, bytes after it change nothing, and a rejected beginning stays
//! rejected. The addresses of a header are the same after they were written in both versions.
#![no_main]

use libfuzzer_sys::fuzz_target;
use postern_http::message::proxy_protocol::{ParsedHeader, ProxyProtocolVersion, parse, write};

fuzz_target!(|input: &[u8]| {
    let whole = parse(input);
    let mut decided = None;
    for end in 0..input.len() {
        let parsed = parse(&input[..end]);
        match decided {
            Some(before) => assert_eq!(parsed, before, "more bytes change the result at {end}"),
            None if parsed != Ok(ParsedHeader::Incomplete) => decided = Some(parsed),
            None => {}
        }
    }
    if let Some(before) = decided {
        assert_eq!(whole, before, "the last byte changes the result");
    }
    let Ok(ParsedHeader::Complete { length, addresses }) = whole else { return };
    assert!(length <= input.len());
    let Some(addresses) = addresses else { return };
    for version in [ProxyProtocolVersion::V1, ProxyProtocolVersion::V2] {
        let written = write(version, Some(addresses));
        let expected = ParsedHeader::Complete { length: written.len(), addresses: Some(addresses) };
        assert_eq!(parse(&written), Ok(expected), "{version:?}");
    }
});
