use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::*;

#[test]
fn encoded_words_are_decoded_and_joined() {
    for (sent, decoded) in [
        ("plain =?utf-8?B?R3LDvMOfZQ==?= end", "plain Grüße end"),
        ("=?utf-8?q?a_?= =?utf-8?q?=C3=BC?=", "a ü"),
        ("=?iso-8859-1?Q?=E9?= x", "é x"),
        ("=?broken =?utf-8?z?x?=", "=?broken =?utf-8?z?x?="),
    ] {
        let message = format!("X-A: {sent}\r\n\r\n");
        let headers = [("X-A".to_owned(), decoded.to_owned())];
        assert_eq!(headers.as_slice(), super::headers(message.as_bytes()));
    }
}

#[test]
fn nested_parts_yield_bodies() {
    let message = "Subject: folded\r\n  subject\r\nContent-Type: multipart/mixed; boundary=\"o;\"\r\n\r\npreamble\r\n\
        --o;\r\nContent-Type: multipart/alternative; boundary=i\r\n\r\n--i\r\nContent-Type: text/plain; charset=utf-8\r\n\
        Content-Transfer-Encoding: quoted-printable\r\n\r\na=C3=BC=\r\nb\r\n--i\r\nContent-Type: text/html\r\n\
        Content-Transfer-Encoding: base64\r\n\r\nPGI+\r\nPC9iPg==\r\n--i--\r\n--o;\r\nContent-Type: application/pdf\r\n\
        Content-Disposition: attachment; filename=\"a \\\"b\\\".pdf\"\r\n\r\n%PDF\r\n--o;--\r\nepilogue";
    let mail = parse(message.as_bytes());
    assert_eq!(
        mail.headers[0],
        ("Subject".to_owned(), "folded subject".to_owned())
    );
    assert_eq!(mail.text.as_deref(), Some("aüb"));
    assert_eq!(mail.html.as_deref(), Some("<b></b>"));
}

#[test]
fn message_without_mime_is_plain_text() {
    let mail = parse(b"Subject: x\r\n\r\nhello\r\n");
    assert_eq!((mail.text.as_deref(), mail.html), (Some("hello\r\n"), None));
}

#[test]
fn malformed_mime_terminates_without_panic() {
    let deep = "Content-Type: multipart/mixed; boundary=x\r\n\r\n--x\r\n".repeat(1000);
    let attached = "Content-Type: message/rfc822\r\n\r\n".repeat(100_000);
    let mixed = format!("Content-Type: multipart/digest; boundary=x\r\n\r\n--x\r\n{attached}");
    let encoded = format!(
        "Content-Type: multipart/mixed; boundary=x\r\n\r\n--x\r\nContent-Type: message/rfc822\r\n\
         Content-Transfer-Encoding: base64\r\n\r\n{}\r\n--x--\r\n",
        STANDARD.encode(&attached)
    );
    for message in [
        b"".as_slice(),
        b"\r\n",
        b":",
        b"=?",
        b"Content-Type: multipart/mixed; boundary\r\n\r\n",
        deep.as_bytes(),
        attached.as_bytes(),
        mixed.as_bytes(),
        encoded.as_bytes(),
    ] {
        let _shown = parse(message);
    }
}
