use super::*;

const LIMITS: HeadLimits = HeadLimits {
    bytes: 4096,
    fields: 8,
    target: 64,
    ambiguous_paths: false,
};

fn check(text: &str) -> Result<RequestHead, HeadFault> {
    let mut progress = HeadScanner::default();
    match progress.find_end(text.as_bytes(), &LIMITS)? {
        Some(end) => RequestHead::check(&text.as_bytes()[..end], &LIMITS),
        None => panic!("the head is not complete: {text:?}"),
    }
}

/// Returns the canonical form of an accepted head; `None` if it has it already.
#[track_caller]
fn canonical(text: &str) -> Option<String> {
    let head = check(text).unwrap_or_else(|fault| panic!("{fault:?}: {text:?}"));
    let local = || Some(([10, 0, 0, 7], 8500).into());
    let canonical = head.canonical_form(text.as_bytes(), local)?;
    Some(String::from_utf8(canonical.to_vec()).expect("text"))
}

#[track_caller]
fn refused(text: &str, fault: HeadFault) {
    assert_eq!(check(text), Err(fault), "{text:?}");
}

#[test]
fn plain_requests_pass() {
    for (rest, body) in [
        ("Host: a.example:80", BodyKind::Length(0)),
        ("host: [::1]\r\nContent-Length: 12", BodyKind::Length(12)),
        ("Host: a\r\nTransfer-Encoding: chunked", BodyKind::Chunked),
    ] {
        let text = format!("POST /a?b=c HTTP/1.1\r\n{rest}\r\n\r\n");
        assert_eq!(check(&text).expect("plain").body, body, "{rest}");
        assert_eq!(canonical(&text), None, "{rest}");
    }
}

#[test]
fn absolute_target_must_match_host() {
    for (line, host, expected) in [
        ("GET http://A.example/x", "a.example", "GET /x"),
        ("GET http://a", "a", "GET /"),
        ("GET HTTP://a?b", "a", "GET /?b"),
        ("GET http://a:80/x", "a", "GET /x"),
        ("GET http://a/x", "a:80", "GET /x"),
        ("GET https://a:443/x", "a:", "GET /x"),
        ("GET http://[::1]:80", "[::1]", "GET /"),
        ("GET http://a:8500/?b/c", "a:8500", "GET /?b/c"),
        ("OPTIONS http://a", "a", "OPTIONS *"),
        ("OPTIONS http://a/", "a", "OPTIONS /"),
        ("OPTIONS http://a?b", "a", "OPTIONS /?b"),
    ] {
        let rest = format!("HTTP/1.1\r\nHost: {host}\r\n\r\n");
        let actual = canonical(&format!("{line} {rest}"));
        assert_eq!(actual, Some(format!("{expected} {rest}")), "{line} {host}");
    }
    for (target, host) in [
        ("http://a:81/x", "a"),
        ("https://a:80/x", "a"),
        ("http://a/x", "a:443"),
        ("http://", "a"),
        ("http:///x", "a"),
        ("http://a#b", "a"),
        ("http://a\\b/x", "a"),
        ("http://b/x", "a"),
        ("http://a@b/x", "b"),
    ] {
        let text = format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n");
        refused(&text, HeadFault::Authority);
    }
    assert_eq!(canonical("OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n"), None);
}

#[test]
fn host_is_a_name_or_address_with_optional_port() {
    let hosts = "a a-b.example 10.0.0.1:65535 [::1] [2001:db8::1]:8500 a: a_b.example.:80";
    for host in hosts.split(' ') {
        let holds = check(&format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n")).is_ok();
        assert!(holds, "{host}");
    }
    for host in [
        "", ":80", "a:65536", "a:99999", "a:080000", "a:x", "a:1:2", "a@b", "a/b", "a,b", "[::1",
        "[:::]", "[a]", "[]", "[::1]x", ".", ".a", "a..", "a..:80", "a..b",
    ] {
        let text = format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n");
        refused(&text, HeadFault::Host);
    }
}

#[test]
fn ambiguous_framing_is_rejected() {
    let old = "POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    refused(old, HeadFault::Framing);
    // `L` and `E` are the names of the fields.
    let framings = "L: 1/E: chunked|E: chunked/L: 1|E: gzip, chunked|E: chunked, chunked|\
        E: chunked/E: chunked|E: \"chunked\"|E: identity|E:|E: xchunked|L: 1/L: 1|L: 1, 1|L: +1|\
        L: -1|L: 0x1|L: 1 1|L:|L: 9999999999999999999";
    for framing in framings.split('|') {
        let framing = framing.replace('L', "Content-Length").replace('/', "\r\n");
        let framing = framing.replace("E:", "Transfer-Encoding:");
        let text = format!("POST / HTTP/1.1\r\nHost: a\r\n{framing}\r\n\r\n");
        refused(&text, HeadFault::Framing);
    }
}

#[test]
fn line_without_crlf_is_rejected() {
    for text in [
        "GET / HTTP/1.1\nHost: a\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\n\n",
        "GET / HTTP/1.1\r\nHost: a\r\nX: a\rb\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nX: a\0b\r\n\r\n",
    ] {
        refused(text, HeadFault::LineEnding);
    }
}

/// The head has each of the texts between bars in the place of `$`.
#[test]
fn malformed_part_is_rejected() {
    let field = "GET / HTTP/1.1\r\nHost: a\r\n$\r\n\r\n";
    let named = "GET / HTTP/1.1\r\nHost: a\r\nConnection: $\r\n\r\n";
    let (line, version) = ("$\r\nHost: a\r\n\r\n", "GET / HTTP/$\r\nHost: a\r\n\r\n");
    let fields = "X : a|X|: a|X\t: a| X: a|\tfolded|X: \x01|X:\x0ca|X: a\x0c|X: \x7f|X(: a";
    let lines = "GET /|GET|GET  / HTTP/1.1|GET /  HTTP/1.1|GET / HTTP/1.1 | GET / HTTP/1.1|\
        GET / http/1.1|GET / HTTP/1.10|GET / HTTP/1|GET\t/\tHTTP/1.1|G(T / HTTP/1.1|\
        GET /a b HTTP/1.1|GET /\u{e9} HTTP/1.1|GET / HTTP/1.1x|GET ftp://a/x HTTP/1.1|\
        GET * HTTP/1.1|OPTIONS ** HTTP/1.1|OPTIONS *?x HTTP/1.1|options * HTTP/1.1|\
        CONNECT a:443 HTTP/1.1|CONNECT /x HTTP/1.1|\r\nGET / HTTP/1.1";
    let hosts = "GET / HTTP/1.1|GET http://a/ HTTP/1.1|GET http://a@b/ HTTP/1.0|\
        GET / HTTP/1.1\r\nHost: a\r\nHost: a";
    // The gateway needs these fields.
    let needed = "Authorization|close, X-Postern-Kind|x_forwarded_for|Host|content-length|\
        Transfer-Encoding|cookie|Forwarded|\"close\"|a b|X-\u{e9}|a,b,c,d,e,f,g,h,i,j";
    for (template, texts, fault) in [
        (field, fields, HeadFault::Field),
        (line, lines, HeadFault::RequestLine),
        (version, "0.9|1.2|1.9|2.0|3.0", HeadFault::Version),
        ("$\r\n\r\n", hosts, HeadFault::Host),
        (named, needed, HeadFault::Connection),
    ] {
        for text in texts.split('|') {
            refused(&template.replace('$', text), fault);
        }
    }
    assert_eq!(HeadFault::Version.code().status(), 505);
}

#[test]
fn http10_request_without_host_is_for_the_local_address() {
    for (line, host, rest) in [
        ("OPTIONS / HTTP/1.0", "10.0.0.7:8500", ""),
        ("GET /a?b HTTP/1.0", "10.0.0.7:8500", "X: a\r\n"),
    ] {
        let found = canonical(&format!("{line}\r\n{rest}\r\n"));
        assert_eq!(found, Some(format!("{line}\r\nhost: {host}\r\n{rest}\r\n")));
    }
    let absolute = canonical("GET http://a:80/x HTTP/1.0\r\n\r\n").expect("another form");
    assert_eq!(absolute, "GET /x HTTP/1.0\r\nhost: a:80\r\n\r\n");
}

#[test]
fn field_that_connection_names_is_removed() {
    for (option, field) in [
        ("Upgrade, HTTP2-Settings", "HTTP2-Settings: AAMAAABk"),
        ("TE, close", "TE: deflate,gzip;q=0.3"),
        ("x-private-hop", "X-Private-Hop: a\r\nx-private-hop: b"),
        ("keep-alive, X-One ,, X-Two", "X-One: a\r\nX-Two:"),
        ("X-One\r\nConnection: close, X-Two", "X-One: a\r\nX-Two: b"),
    ] {
        let head = format!("GET / HTTP/1.1\r\nHost: a\r\nConnection: {option}\r\nX: a\r\n");
        let actual = canonical(&format!("{head}{field}\r\n\r\n"));
        assert_eq!(actual, Some(format!("{head}\r\n")), "{option}");
    }
    for option in ["Keep-Alive, Upgrade", "close", "", ","] {
        let head = "GET / HTTP/1.1\r\nHost: a\r\nKeep-Alive: 5\r\nUpgrade: x";
        let actual = canonical(&format!("{head}\r\nConnection: {option}\r\n\r\n"));
        assert_eq!(actual, None, "{option}");
    }
}

proptest::proptest! {
    #[test]
    fn arbitrary_bytes_never_panic_and_split_reads_agree(
        bytes in proptest::collection::vec(
            proptest::sample::select(b"GET / HTTP/1.1\r\nHost: a:\t \0chunked,Content-Length".to_vec()), 0..200),
        cut in 0_usize..200,
    ) {
        let mut whole = HeadScanner::default();
        let at_once = whole.find_end(&bytes, &LIMITS);
        let mut parts = HeadScanner::default();
        let first = parts.find_end(&bytes[..cut.min(bytes.len())], &LIMITS);
        let in_two = match first { Ok(None) => parts.find_end(&bytes, &LIMITS), known => known };
        proptest::prop_assert_eq!(at_once, in_two);
        if let Ok(Some(end)) = at_once {
            let _verdict = RequestHead::check(&bytes[..end], &LIMITS);
        }
    }
}
