use super::harness::start;

#[tokio::test]
async fn invalid_requests_return_specific_errors() {
    let pool = start().await;
    for (operation, body, kind) in [
        ("InitiateAuth", "{", "SerializationException"),
        (
            "InitiateAuth",
            r#"{"ClientId": 7, "AuthFlow": "X"}"#,
            "SerializationException",
        ),
        (
            "InitiateAuth",
            r#"{"AuthFlow": "USER_PASSWORD_AUTH"}"#,
            "InvalidParameterException",
        ),
        (
            "InitiateAuth",
            r#"{"AuthFlow": "X", "ClientId": "nobody"}"#,
            "ResourceNotFoundException",
        ),
        ("ListUserPools", "{}", "UnknownOperationException"),
        ("AdminGetUser", "{}", "MissingAuthenticationTokenException"),
        (
            "GetUser",
            r#"{"AccessToken": "a.b.c"}"#,
            "NotAuthorizedException",
        ),
    ] {
        let answer = pool.raw(operation, body).await;
        assert_eq!(answer.status(), 400, "{operation} {body}");
        assert_eq!(
            answer.headers()["x-amzn-errortype"],
            kind,
            "{operation} {body}"
        );
        assert_eq!(
            answer.headers()["content-type"],
            "application/x-amz-json-1.1"
        );
        let body: serde_json::Value = answer.json().await.expect("JSON");
        assert_eq!(body["__type"], kind);
        assert!(body["message"].is_string());
    }
}
