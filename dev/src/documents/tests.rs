use std::path::PathBuf;

use super::*;
use crate::testing::{TestIssuers, send_request, serve_router};

const CONTENT_TYPE_VALUE: &str = "multipart/form-data; boundary=B";

async fn start() -> (TestIssuers, String, PathBuf, reqwest::Client) {
    let pools = TestIssuers::start().await;
    let folder = pools.folder.path().join("documents");
    std::fs::create_dir(&folder).expect("folder");
    let samples = Samples {
        verifier: Arc::clone(&pools.verifier),
        sqlite: pools.sqlite.clone(),
        folder: folder.clone(),
        clock: pools.clock.clone(),
    };
    let url = serve_router(router(Arc::new(samples))).await;
    (pools, url, folder, reqwest::Client::new())
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
    let (pools, url, folder, client) = start().await;
    let token = pools.user("s-1", &[]);
    let send = async |body: Vec<u8>| {
        let request = client
            .post(format!("{url}/resumes"))
            .header("content-type", CONTENT_TYPE_VALUE)
            .body(body);
        let (status, body) = send_request(request, &token).await;
        let errors = body["errors"].as_array().cloned().unwrap_or_default();
        let mut found: Vec<String> = errors
            .iter()
            .map(|error| format!("{}{}", error["pointer"], error["code"]).replace('"', ""))
            .collect();
        found.sort();
        (status, found.join(" "))
    };
    let file = || part("name=resume; filename=a", b"x");
    let text = || part("name=candidateId", b"c");
    assert_eq!(
        send(form(&[])).await,
        (
            400,
            "/candidateIdmissing_field /resumemissing_field".to_owned()
        )
    );
    let wrong = form(&[
        part("name=resume", b"x"),
        part("name=\"a/b\"", b"y"),
        file(),
        text(),
        text(),
    ]);
    let expected = "/a~1bunknown_field /candidateIdunknown_field /resumeunknown_field";
    assert_eq!(send(wrong).await, (400, expected.to_owned()));
    let empty = form(&[part("name=resume; filename=a", b""), text()]);
    assert_eq!(send(empty).await, (422, "/resumeempty_file".to_owned()));
    for malformed in [[file(), text()].concat(), b"--Bx".to_vec()] {
        assert_eq!(send(malformed).await, (400, "invalid_multipart".to_owned()));
    }
    let long = form(&[file(), part("name=candidateId", &[b'c'; 5000])]);
    assert_eq!(send(long).await.0, 413);
    let large = part("name=resume; filename=a", &vec![b'x'; 101 << 20]);
    assert_eq!(send(large).await.0, 413);
    assert_eq!(std::fs::read_dir(&folder).expect("folder").count(), 0);
    let other = client.post(format!("{url}/resumes")).body("x");
    assert_eq!(send_request(other, &token).await.0, 415);
    assert_eq!(
        send_request(client.post(format!("{url}/resumes")), "no token")
            .await
            .0,
        401
    );
}
