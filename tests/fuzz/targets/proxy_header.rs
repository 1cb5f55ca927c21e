//! Fuzzes headers of the PROXY protocol. The result must not depend on how the bytes arrive: a prefix
//! of an accepted header is incomplete, bytes after it change nothing, and a rejected beginning stays
//! rejected.
#![no_main]

use libfuzzer_sys::fuzz_target;
use postern_http::message::proxy_protocol::{ParsedHeader, parse};

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
    if let Ok(ParsedHeader::Complete { length, .. }) = whole {
        assert!(length <= input.len());
    }
});
