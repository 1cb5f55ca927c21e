//! Fuzzes heads and bodies. A head that the gateway accepts must be parsed by another parser
//! (httparse, which Pingora uses) as the same request, with one framing; and the end of a body must
//! not depend on how it is split into chunks.
#![no_main]

use libfuzzer_sys::fuzz_target;
use postern_http::message::framing::BodyFraming as Framing;
use postern_http::message::head::{BodyKind, HeadLimits, HeadScanner as Progress, RequestHead as Head};
use postern_http::message::headers::is_reserved;

const LIMITS: HeadLimits = HeadLimits { bytes: 2048, fields: 32, target: 512, ambiguous_paths: false };

fuzz_target!(|input: &[u8]| {
    let Ok(Some(end)) = Progress::default().find_end(input, &LIMITS) else { return };
    let Ok(head) = Head::check(&input[..end], &LIMITS) else { return };
    let mut fields = [httparse::EMPTY_HEADER; 64];
    let mut other = httparse::Request::new(&mut fields);
    let read = other.parse(&input[..end]).expect("what passes is HTTP");
    assert_eq!(read, httparse::Status::Complete(end), "both end at the same byte");
    let values = |name: &str| {
        other.headers.iter().filter(|field| field.name.eq_ignore_ascii_case(name)).map(|field| field.value).collect::<Vec<_>>()
    };
    // A request of HTTP/1.0 without one is for the local address.
    let hosts = values("host").len();
    assert!(hosts == 1 || hosts == 0 && other.version == Some(0));
    match head.body {
        BodyKind::Chunked => {
            assert!(values("content-length").is_empty());
            assert!(matches!(values("transfer-encoding")[..], [value] if value.eq_ignore_ascii_case(b"chunked")));
        }
        BodyKind::Length(length) => {
            assert!(values("transfer-encoding").is_empty());
            let announced = values("content-length");
            let text = announced.first().map(|value| std::str::from_utf8(value).expect("digits"));
            assert_eq!(text.map_or(0, |text| text.parse::<u64>().expect("a number")), length);
        }
    }
    for value in values("connection") {
        for option in value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
            let name = std::str::from_utf8(option).expect("text").to_ascii_lowercase();
            let framing = ["host", "content-length", "transfer-encoding", "authorization", "cookie"];
            assert!(!framing.contains(&name.as_str()) && !is_reserved(&name), "{name} would be removed");
        }
    }
    let body = &input[end..];
    let mut whole = Framing::begin(head.body);
    let at_once = whole.advance(body);
    let mut parts = Framing::begin(head.body);
    let mut taken = 0;
    for byte in body {
        match parts.advance(std::slice::from_ref(byte)) {
            Ok(more) => taken += more,
            Err(fault) => return assert_eq!(at_once, Err(fault)),
        }
    }
    assert_eq!((at_once, whole), (Ok(taken), parts));
});
