use super::*;
use crate::testing::{TestIssuers, send_request, serve_router};
use sha2::{Digest, Sha256};

const CONTENT_TYPE_VALUE: &str = "multipart/form-data; boundary=B";

async fn start() -> (TestIssuers, String, PathBuf, reqwest::Client) {
    let pools = TestIssuers::start().await;
    let folder = pools.folder.path().join("documents");
    std::fs::create_dir(&folder).expect("folder");
    let service = DocumentService::new(
        Arc::clone(&pools.verifier),
        pools.sqlite.clone(),
        folder.clone(),
        pools.clock.clone(),
    );
    let url = serve_router(router(service.expect("service"))).await;
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
async fn large_upload_is_stored_unchanged() {
    let (pools, url, folder, client) = start().await;
    let bytes: Vec<u8> = (0..5_000_000_u32).flat_map(|n| n.to_le_bytes()).collect();
    let body = form(&[
        part("name=resume; filename=\"../cv.pdf\"", &bytes),
        part("name=candidateId", b"c-7"),
    ]);
    let request = client
        .post(format!("{url}/resumes"))
        .header("content-type", CONTENT_TYPE_VALUE)
        .body(body);
    let token = pools.user("s-1", &[]);
    let (status, resume) = send_request(request, &token).await;
    assert_eq!(
        (status, &resume["candidateId"], &resume["fileName"]),
        (201, &"c-7".into(), &"cv.pdf".into())
    );
    assert_eq!(resume["size"], bytes.len());
    let id = resume["resumeId"].as_str().expect("id");
    let stored = std::fs::read(folder.join(id)).expect("stored");
    assert!(stored == bytes);
    assert_eq!(resume["sha256"], hex::encode(Sha256::digest(&bytes)));
    let again = send_request(client.get(format!("{url}/resumes/{id}")), &token).await;
    assert_eq!(again, (200, resume.clone()));
    let list = |candidate: &str| client.get(format!("{url}/resumes?candidateId={candidate}"));
    for (caller, candidate, found) in [
        (&token, "c-7", json!([resume])),
        (&token, "c-8", json!([])),
        (&pools.user("s-2", &["admin"]), "c-7", json!([])),
        (&pools.user("s-2", &["recruiters"]), "c-7", json!([resume])),
        (&pools.service("actor"), "c-7", json!([resume])),
    ] {
        let listed = send_request(list(candidate), caller).await;
        assert_eq!(listed, (200, json!({ "resumes": found })));
    }
    assert_eq!(send_request(list(""), &token).await.0, 400);
    assert_eq!(
        send_request(
            client.get(format!("{url}/resumes/{id}")),
            &pools.user("s-2", &[])
        )
        .await
        .0,
        404
    );
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
    let expected = "/a~1bunknown_field /candidateIdduplicate_field /resumeinvalid_type";
    assert_eq!(send(wrong).await, (400, expected.to_owned()));
    let empty = form(&[part("name=resume; filename=a", b""), text()]);
    assert_eq!(send(empty).await, (422, "/resumeempty_file".to_owned()));
    let long = form(&[file(), part("name=candidateId", &[b'c'; 5000])]);
    assert_eq!(
        send(long).await,
        (400, "/candidateIdinvalid_length".to_owned())
    );
    assert_eq!(
        send([file(), text()].concat()).await,
        (400, "invalid_multipart".to_owned())
    );
    let encoded = "--B\r\nContent-Disposition: form-data; name=x\r\nContent-Transfer-Encoding: base64\r\n\r\nx\r\n--B--";
    let unnamed = "--B\r\nContent-Disposition: form-data\r\n\r\nx\r\n--B--";
    let headless = "--B\r\n\r\nx\r\n--B--";
    let many = part("name=x", b"").repeat(33);
    for malformed in [
        encoded.as_bytes(),
        unnamed.as_bytes(),
        headless.as_bytes(),
        b"--Bx",
        &many,
    ] {
        let answer = send(malformed.to_vec()).await;
        assert_eq!(answer, (400, "invalid_multipart".to_owned()));
    }
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

#[tokio::test]
async fn recruiter_adds_job_specs_and_everyone_reads_them() {
    let (pools, url, _, client) = start().await;
    let (user, recruiter) = (pools.user("s-1", &[]), pools.user("s-2", &["recruiters"]));
    let post = |title: &str| {
        let body = json!({"title": title, "description": "Writes programs.\nOn paper."});
        client.post(format!("{url}/job-specs")).json(&body)
    };
    assert_eq!(send_request(post("Analyst"), &user).await.0, 403);
    let (_, first) = send_request(post("Analyst"), &recruiter).await;
    let (status, second) = send_request(post("Engineer"), &pools.service("auth")).await;
    assert_eq!((status, &second["title"]), (201, &"Engineer".into()));
    let get = |path: &str| client.get(format!("{url}/job-specs{path}"));
    let listed = send_request(get(""), &user).await;
    assert_eq!(listed, (200, json!({ "jobSpecs": [second, first] })));
    let path = format!("/{}", first["jobSpecId"].as_str().expect("id"));
    assert_eq!(send_request(get(&path), &user).await, (200, first));
    assert_eq!(send_request(get("/none"), &user).await.0, 404);
}
