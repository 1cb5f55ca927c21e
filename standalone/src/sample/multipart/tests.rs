use super::*;

const BODY: &[u8] = b"preamble\r\n--b-1\r\nContent-Disposition: form-data; name=\"candidateId\"\r\n\r\nc-7\r\n--b-1  \r\n\
    Content-Disposition: form-data; name=\"resume\"; filename=\"my \\\"cv\\\".pdf\"\r\nContent-Type: application/pdf\r\n\r\n\
    %PDF\r\n--b-\r\n--b\r\n\r\n--x\r\r\n\r\n--b-1\r\nContent-Disposition: form-data; name=empty\r\n\r\n\r\n--b-1--\r\nepilogue";

/// Name, file name, bytes.
type Part = (String, Option<String>, Vec<u8>);

/// The parts, however the bytes arrive.
fn parts(chunks: &[&[u8]]) -> Result<Vec<Part>, Malformed> {
    let mut reader = Multipart::new("b-1");
    let (mut parts, mut open) = (Vec::new(), None);
    for chunk in chunks {
        reader.push(chunk);
        while let Some(event) = reader.next()? {
            match event {
                Event::Begin(head) => open = Some((head.name, head.file_name, Vec::new())),
                Event::Data(bytes) => {
                    assert!(!bytes.is_empty());
                    open.as_mut()
                        .expect("open part")
                        .2
                        .extend_from_slice(&bytes);
                }
                Event::End => parts.push(open.take().expect("open part")),
            }
        }
    }
    if reader.is_done() {
        Ok(parts)
    } else {
        Err(Malformed("cut off"))
    }
}

fn expected() -> Vec<Part> {
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
fn the_body_may_be_split_at_every_byte() {
    assert_eq!(parts(&[BODY]), Ok(expected()));
    for at in 0..BODY.len() {
        let (left, right) = BODY.split_at(at);
        assert_eq!(parts(&[left, right]), Ok(expected()), "split at {at}");
    }
    let single: Vec<&[u8]> = BODY.chunks(1).collect();
    assert_eq!(parts(&single), Ok(expected()));
}

#[test]
fn a_body_that_is_cut_off_is_never_whole() {
    let end = BODY.len() - "--\r\nepilogue".len();
    for at in 0..=end {
        assert_eq!(
            parts(&[&BODY[..at]]),
            Err(Malformed("cut off")),
            "cut at {at}"
        );
    }
}

#[test]
fn what_is_not_form_data_is_refused() {
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
fn memory_is_bounded_whatever_is_sent() {
    let mut reader = Multipart::new("b-1");
    reader.push(&vec![b'x'; MAX_HEAD + 1]);
    assert_eq!(reader.next(), Err(Malformed("no part begins")));
    let mut reader = Multipart::new("b-1");
    reader.push(b"--b-1\r\n");
    reader.push(&vec![b'x'; MAX_HEAD + 1]);
    assert_eq!(
        reader.next(),
        Err(Malformed("the head of a part is too long"))
    );
    let many = "--b-1\r\nContent-Disposition: form-data; name=x\r\n\r\n\r\n".repeat(MAX_PARTS + 1);
    assert_eq!(parts(&[many.as_bytes()]), Err(Malformed("too many parts")));
}

#[test]
fn the_boundary_comes_from_the_content_type() {
    let of = |value: &str| {
        let value = http::HeaderValue::from_str(value).expect("value");
        Multipart::of(&[(CONTENT_TYPE, value)].into_iter().collect()).map(|reader| reader.delimiter)
    };
    assert_eq!(
        of("multipart/form-data; boundary=a").as_deref(),
        Some(&b"\r\n--a"[..])
    );
    assert_eq!(
        of("Multipart/Form-Data; charset=x; boundary=\"a b\"").as_deref(),
        Some(&b"\r\n--a b"[..])
    );
    for value in [
        "multipart/mixed; boundary=a",
        "multipart/form-data",
        "multipart/form-data; boundary=",
        "text/plain",
    ] {
        assert_eq!(of(value), None, "{value}");
    }
}
