use super::*;

const BODY: &[u8] = b"preamble\r\n--b-1\r\nContent-Disposition: form-data; name=\"candidateId\"\r\n\r\nc-7\r\n--b-1  \r\n\
    Content-Disposition: form-data; name=\"resume\"; filename=\"my \\\"cv\\\".pdf\"\r\nContent-Type: application/pdf\r\n\r\n\
    %PDF\r\n--b-\r\n--b\r\n\r\n--x\r\r\n\r\n--b-1\r\nContent-Disposition: form-data; name=empty\r\n\r\n\r\n--b-1--\r\nepilogue";

/// Name, file name, and content.
type ParsedPart = (String, Option<String>, Vec<u8>);

/// Parses the body in the given chunks.
fn parts(chunks: &[&[u8]]) -> Result<Vec<ParsedPart>, MultipartError> {
    let mut reader = MultipartParser::new("b-1");
    let (mut parts, mut open) = (Vec::new(), None);
    for chunk in chunks {
        reader.push(chunk);
        while let Some(event) = reader.next()? {
            match event {
                FormEvent::Begin(head) => open = Some((head.name, head.file_name, Vec::new())),
                FormEvent::Data(bytes) => {
                    assert!(!bytes.is_empty());
                    open.as_mut()
                        .expect("open part")
                        .2
                        .extend_from_slice(&bytes);
                }
                FormEvent::End => parts.push(open.take().expect("open part")),
            }
        }
    }
    if reader.is_done() {
        Ok(parts)
    } else {
        Err(MultipartError("cut off"))
    }
}

fn expected() -> Vec<ParsedPart> {
    vec![
        ("candidateId".to_owned(), None, b"c-7".to_vec()),
        (
            "resume".to_owned(),
            Some("my \"cv\".pdf".to_owned()),
            b"%PDF\r\n--b-\r\n--b\r\n\r\n--x\r\r\n".to_vec(),
        ),
        ("empty".to_owned(), None, Vec::new()),
    ]
}

#[test]
fn body_can_be_split_at_every_byte() {
    assert_eq!(parts(&[BODY]), Ok(expected()));
    for at in 0..BODY.len() {
        let (left, right) = BODY.split_at(at);
        assert_eq!(parts(&[left, right]), Ok(expected()), "split at {at}");
    }
    let single: Vec<&[u8]> = BODY.chunks(1).collect();
    assert_eq!(parts(&single), Ok(expected()));
}

#[test]
fn truncated_body_is_incomplete() {
    let end = BODY.len() - "--\r\nepilogue".len();
    for at in 0..=end {
        assert_eq!(
            parts(&[&BODY[..at]]),
            Err(MultipartError("cut off")),
            "cut at {at}"
        );
    }
}

#[test]
fn malformed_form_data_is_rejected() {
    for body in [
        &b"--b-1\r\n\r\nx\r\n--b-1--"[..],
        b"--b-1\r\nContent-Disposition: attachment; name=x\r\n\r\nx\r\n--b-1--",
        b"--b-1\r\nContent-Disposition: form-data\r\n\r\nx\r\n--b-1--",
        b"--b-1\r\nContent-Disposition: form-data; name=x\r\nContent-Transfer-Encoding: base64\r\n\r\nx\r\n--b-1--",
        b"--b-1\r\nContent-Disposition: form-data; name=x\r\nno colon\r\n\r\nx\r\n--b-1--",
        b"--b-1junk\r\n",
    ] {
        assert!(parts(&[body]).is_err_and(|error| error.0 != "cut off"), "{}", String::from_utf8_lossy(body));
    }
}

#[test]
fn buffer_is_bounded_for_any_input() {
    let mut reader = MultipartParser::new("b-1");
    reader.push(&vec![b'x'; MAX_HEAD_BYTES + 1]);
    assert_eq!(reader.next(), Err(MultipartError("no part begins")));
    let mut reader = MultipartParser::new("b-1");
    reader.push(b"--b-1\r\n");
    reader.push(&vec![b'x'; MAX_HEAD_BYTES + 1]);
    assert_eq!(
        reader.next(),
        Err(MultipartError("the head of a part is too long"))
    );
    let many = "--b-1\r\nContent-Disposition: form-data; name=x\r\n\r\n\r\n".repeat(MAX_PARTS + 1);
    assert_eq!(
        parts(&[many.as_bytes()]),
        Err(MultipartError("too many parts"))
    );
}

#[test]
fn boundary_is_read_from_content_type() {
    let for_headers = |value: &str| {
        let value = http::HeaderValue::from_str(value).expect("value");
        MultipartParser::for_headers(&[(CONTENT_TYPE, value)].into_iter().collect())
            .map(|reader| reader.delimiter)
    };
    assert_eq!(
        for_headers("multipart/form-data; boundary=a").as_deref(),
        Some(&b"\r\n--a"[..])
    );
    assert_eq!(
        for_headers("Multipart/Form-Data; charset=x; boundary=\"a b\"").as_deref(),
        Some(&b"\r\n--a b"[..])
    );
    for value in [
        "multipart/mixed; boundary=a",
        "multipart/form-data",
        "multipart/form-data; boundary=",
        "text/plain",
    ] {
        assert_eq!(for_headers(value), None, "{value}");
    }
}
