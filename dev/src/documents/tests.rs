use super::*;

/// Receives a body. Returns the status and the mistakes.
async fn send(folder: &path::Path, content_type: &str, body: Vec<u8>) -> (u64, String) {
    let value = content_type.parse().expect("a value");
    let headers = HeaderMap::from_iter([(CONTENT_TYPE, value)]);
    let received = receive(folder, &headers, body.into()).await;
    let problem = received.expect_err("refused").to_json("id");
    let errors = problem["errors"].as_array().cloned().unwrap_or_default();
    let errors = errors.iter();
    let mut found: Vec<String> = errors
        .map(|error| format!("{}{}", error["pointer"], error["code"]).replace('"', ""))
        .collect();
    found.sort();
    (
        problem["status"].as_u64().expect("a status"),
        found.join(" "),
    )
}

fn part(disposition: &str, bytes: &[u8]) -> Vec<u8> {
    let head = format!("--B\r\nContent-Disposition: form-data; {disposition}\r\n\r\n");
    [head.as_bytes(), bytes, b"\r\n"].concat()
}

fn form(parts: &[Vec<u8>]) -> Vec<u8> {
    [parts.concat().as_slice(), b"--B--\r\n"].concat()
}

#[tokio::test]
async fn invalid_form_reports_all_errors_and_leaves_no_file() {
    let folder = tempfile::tempdir().expect("folder");
    let file = || part("name=resume; filename=a", b"x");
    let text = || part("name=candidateId", b"c");
    let parts = [
        part("name=resume", b"x"),
        part("name=\"a/b\"", b"y"),
        file(),
    ];
    let wrong = form(&[parts.concat(), text(), text()]);
    let surplus = "/a~1bunknown_field /candidateIdunknown_field /resumeunknown_field";
    let empty = form(&[part("name=resume; filename=a", b""), text()]);
    let long = form(&[file(), part("name=candidateId", &[b'c'; 5000])]);
    let large = part("name=resume; filename=a", &vec![b'x'; 101 << 20]);
    for (body, status, mistakes) in [
        (
            form(&[]),
            400,
            "/candidateIdmissing_field /resumemissing_field",
        ),
        (wrong, 400, surplus),
        (empty, 422, "/resumeempty_file"),
        ([file(), text()].concat(), 400, "invalid_multipart"),
        (b"--Bx".to_vec(), 400, "invalid_multipart"),
        (long, 413, ""),
        (large, 413, ""),
    ] {
        let found = send(folder.path(), "multipart/form-data; boundary=B", body).await;
        assert_eq!(found, (status, mistakes.to_owned()));
    }
    let other = send(folder.path(), "text/plain", b"x".to_vec()).await;
    assert_eq!(other, (415, String::new()));
    let left = std::fs::read_dir(folder.path()).expect("folder");
    assert_eq!(left.count(), 0);
}
