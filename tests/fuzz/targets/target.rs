//! Fuzzes request targets. An accepted target must have one interpretation: a URL parser resolves
//! it to itself, and decoding it creates no new separator, dot segment or control character.
#![no_main]

use libfuzzer_sys::fuzz_target;
use url::Url;
use postern_http::message::target::RequestTarget as Target;

fuzz_target!(|input: &[u8]| {
    let Ok(target) = Target::parse(input) else { return };
    let base = Url::parse("http://h/").expect("a URL");
    let resolved = base.join(target.path).expect("a path");
    // The parser escapes some characters.
    assert_eq!(decode(resolved.path().as_bytes()), decode(target.path.as_bytes()));
    assert_eq!((resolved.host_str(), resolved.query(), resolved.fragment()), (Some("h"), None, None));
    let decoded = decode(target.path.as_bytes());
    assert!(std::str::from_utf8(&decoded).is_ok());
    let slashes = |bytes: &[u8]| bytes.iter().filter(|byte| **byte == b'/').count();
    assert_eq!(slashes(&decoded), slashes(target.path.as_bytes()));
    assert!(!decoded.iter().any(|byte| *byte < 0x20 || *byte == 0x7f || matches!(byte, b'\\' | b';')));
    assert!(!decoded.split(|byte| *byte == b'/').any(|segment| segment == b"." || segment == b".."));
    let twice = decode(&decoded);
    assert_eq!(slashes(&twice), slashes(&decoded), "decoding again makes no separator");
});

/// Decodes every escape once.
fn decode(bytes: &[u8]) -> Vec<u8> {
    let mut decoded = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let hex = bytes.get(at + 1..at + 3).filter(|_| bytes[at] == b'%');
        let hex = hex.and_then(|hex| std::str::from_utf8(hex).ok()).filter(|hex| !hex.starts_with('+'));
        match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => {
                decoded.push(byte);
                at += 3;
            }
            None => {
                decoded.push(bytes[at]);
                at += 1;
            }
        }
    }
    decoded
}
