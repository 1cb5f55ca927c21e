use proptest::prelude::*;

use super::*;

fn address(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

fn complete(bytes: &[u8]) -> (usize, Option<SocketAddr>) {
    match parse(bytes) {
        Ok(ParsedHeader::Complete { length, source }) => (length, source),
        other => panic!("{other:?}: {:?}", String::from_utf8_lossy(bytes)),
    }
}

/// Returns a header of version 2 with this fourth-byte block and what follows it.
fn v2(command: u8, family: u8, content: &[u8]) -> Vec<u8> {
    let length = u16::try_from(content.len()).expect("a length");
    let mut header = V2_SIGNATURE.to_vec();
    header.extend_from_slice(&[command, family]);
    header.extend_from_slice(&length.to_be_bytes());
    header.extend_from_slice(content);
    header
}

fn tlv(kind: u8, value: &[u8]) -> Vec<u8> {
    let length = u16::try_from(value.len()).expect("a length");
    let mut tlv = vec![kind];
    tlv.extend_from_slice(&length.to_be_bytes());
    tlv.extend_from_slice(value);
    tlv
}

const V4: &[u8] = &[192, 0, 2, 1, 198, 51, 100, 2, 0x1f, 0x90, 0x01, 0xbb];

#[test]
fn version_1_headers_are_parsed() {
    let (source, mapped) = (Some("[2001:db8::1]:0"), Some("192.0.2.1:1"));
    for (line, expected) in [
        ("TCP4 192.0.2.1 198.51.100.2 80 443", Some("192.0.2.1:80")),
        ("TCP6 2001:db8::1 2001:db8::2 0 65535", source),
        ("TCP6 ::ffff:192.0.2.1 ::ffff:1.2.3.4 1 2", mapped),
        ("UNKNOWN", None),
        ("UNKNOWN ffff:: what ever 1 2", None),
    ] {
        let line = format!("PROXY {line}");
        let text = format!("{line}\r\nGET / HTTP/1.1\r\n");
        let expected = (line.len() + 2, expected.map(address));
        assert_eq!(complete(text.as_bytes()), expected);
        for length in 0..line.len() + 2 {
            let part = parse(&text.as_bytes()[..length]);
            assert_eq!(part, Ok(ParsedHeader::Incomplete), "{line}: {length}");
        }
    }
}

#[test]
fn malformed_version_1_header_is_rejected() {
    let lines = "TCP4 1.0.2.1 1.0.2.2 80|TCP4 1.0.2.1 1.0.2.2 80 443 | TCP4 1.0.2.1 1.0.2.2 80 443|\
        TCP4 1.0.2.1 1.0.2.2 80 65536|TCP4 1.0.2.1 1.0.2.2 080 443|TCP4 1.0.2.1 1.0.2.2 +80 443|\
        TCP4 1.0.2.256 1.0.2.2 80 443|TCP4 1.0.2.01 1.0.2.2 80 443|TCP4 2001:db8::1 1.0.2.2 80 443|\
        TCP6 1.0.2.1 1.0.2.2 80 443|TCP6 fe80::1%eth0 2001:db8::2 1 2|UDP4 1.0.2.1 1.0.2.2 80 443|\
        tcp4 1.0.2.1 1.0.2.2 80 443||TCP4 1.0.2.1\n1.0.2.2 80 443|TCP4 1.0.2.1 1.0.2.2 80 \u{663}";
    for line in lines.split('|') {
        let found = parse(format!("PROXY {line}\r\n").as_bytes());
        assert_eq!(found, Err(HeaderFault::Malformed), "{line}");
    }
    let long = format!("PROXY UNKNOWN {}\r\n", "x".repeat(91));
    assert_eq!(long.len(), MAX_V1_BYTES, "accepted up to here");
    assert_eq!(complete(long.as_bytes()), (MAX_V1_BYTES, None));
    let longer = format!("PROXY UNKNOWN {}\r\n", "x".repeat(92));
    assert_eq!(parse(longer.as_bytes()), Err(HeaderFault::Malformed));
    // Nothing more has to arrive for this decision.
    let endless = &longer.as_bytes()[..MAX_V1_BYTES];
    assert_eq!(parse(endless), Err(HeaderFault::Malformed));
}

#[test]
fn version_2_headers_are_parsed() {
    let v4 = Some(address("192.0.2.1:8080"));
    let mut mapped = Vec::new();
    for octets in [[192, 0, 2, 1], [198, 51, 100, 2]] {
        mapped.extend_from_slice(&Ipv4Addr::from(octets).to_ipv6_mapped().octets());
    }
    mapped.extend_from_slice(&V4[8..]);
    let extended = [V4, &tlv(0x01, b"h2"), &tlv(0x20, &[7; 300])].concat();
    for (header, expected) in [
        (v2(0x21, 0x11, V4), v4),
        (v2(0x21, 0x11, &extended), v4),
        (v2(0x21, 0x21, &mapped), v4),
        (v2(0x20, 0x00, b""), None),
        // LOCAL: whatever the rest says.
        (v2(0x20, 0x11, V4), None),
        (v2(0x20, 0xff, b"xyz"), None),
        (v2(0x21, 0x00, V4), None),
    ] {
        let followed = [header.as_slice(), b"GET /"].concat();
        assert_eq!(complete(&followed), (header.len(), expected), "{header:?}");
        for length in 0..header.len() {
            let part = parse(&header[..length]);
            assert_eq!(part, Ok(ParsedHeader::Incomplete), "{header:?}: {length}");
        }
    }
}

#[test]
fn malformed_version_2_header_is_rejected() {
    let extended = |extension: &[u8]| v2(0x21, 0x11, &[V4, extension].concat());
    let too_long = tlv(0x20, &[0; MAX_HEADER_BYTES]);
    for (header, why) in [
        (v2(0x11, 0x11, V4), "version 1"),
        (v2(0x31, 0x11, V4), "version 3"),
        (v2(0x22, 0x11, V4), "an unknown command"),
        (v2(0x21, 0x12, V4), "a datagram"),
        (v2(0x21, 0x31, &[0; 216]), "a Unix socket"),
        (v2(0x21, 0x11, &V4[..11]), "too short for its family"),
        (v2(0x21, 0x21, V4), "too short for IPv6"),
        (extended(&[0x20, 0]), "half an extension head"),
        (extended(&[0x20, 0, 4, 1]), "an extension beyond the end"),
        (extended(&too_long), "too long"),
        (extended(&tlv(0x03, &[0; 4])), "a wrong checksum"),
        (extended(&tlv(0x03, &[])), "an empty checksum"),
    ] {
        assert_eq!(parse(&header), Err(HeaderFault::Malformed), "{why}");
    }
    let oversize = [V2_SIGNATURE, &[0x21, 0x11, 0xff, 0xff]].concat();
    assert_eq!(parse(&oversize), Err(HeaderFault::Malformed), "at once");
}

#[test]
fn checksum_is_verified() {
    assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    let mut header = v2(0x21, 0x11, &[V4, &tlv(0x03, &[0; 4])].concat());
    let checksum = crc32c(&header).to_be_bytes();
    let at = header.len() - 4;
    header[at..].copy_from_slice(&checksum);
    assert!(complete(&header).1.is_some());
    header[17] ^= 1;
    assert_eq!(parse(&header), Err(HeaderFault::Malformed));
}

#[test]
fn other_protocols_have_no_header() {
    for bytes in [
        &b"GET / HTTP/1.1\r\n"[..],
        b"P0",
        b"POST / HTTP/1.1\r\n",
        b"PROXY\t",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00",
        b"\r\n\r\nGET",
    ] {
        assert_eq!(parse(bytes), Err(HeaderFault::Missing), "{bytes:?}");
    }
    assert_eq!(parse(b""), Ok(ParsedHeader::Incomplete));
    assert_eq!(parse(b"P"), Ok(ParsedHeader::Incomplete));
}

proptest! {
    #[test]
    fn any_bytes_are_parsed_without_a_panic(
        command in 0x1f..0x23_u8,
        family in prop_oneof![Just(0x11_u8), Just(0x21), any::<u8>()],
        content in proptest::collection::vec(any::<u8>(), 0..80),
        cut in 0..100_usize,
    ) {
        let header = v2(command, family, &content);
        let _any = parse(&header[..header.len().min(cut)]);
        let _any = parse(&content);
        let _any = parse(&[V1_SIGNATURE, &content, b"\r\n"].concat());
    }
}
