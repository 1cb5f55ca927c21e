use serde_json::json;

use super::harness::{EMAIL, PASSWORD, start};

#[tokio::test]
async fn invalid_requests_return_specific_errors() {
    let pool = start().await;
    let key = &pool.provisioned.access_key_id;
    let longer = format!("{key}X");
    for (operation, access_key, body, exception) in [
        ("InitiateAuth", None, "{", "Serialization"),
        (
            "InitiateAuth",
            None,
            r#"{"ClientId": 7, "AuthFlow": "X"}"#,
            "Serialization",
        ),
        (
            "InitiateAuth",
            None,
            r#"{"AuthFlow": "USER_PASSWORD_AUTH"}"#,
            "InvalidParameter",
        ),
        (
            "InitiateAuth",
            None,
            r#"{"AuthFlow": "X", "ClientId": "nobody"}"#,
            "ResourceNotFound",
        ),
        ("ListUserPools", None, "{}", "UnknownOperation"),
        ("AdminGetUser", None, "{}", "MissingAuthenticationToken"),
        ("AdminGetUser", Some("AKID"), "{}", "UnrecognizedClient"),
        ("AdminGetUser", Some(&*longer), "{}", "UnrecognizedClient"),
        ("CreateUserPool", Some(&**key), "{}", "InvalidParameter"),
        (
            "CreateUserPoolClient",
            Some(&**key),
            r#"{"ClientName": "x"}"#,
            "InvalidParameter",
        ),
        (
            "GetUser",
            None,
            r#"{"AccessToken": "a.b.c"}"#,
            "NotAuthorized",
        ),
    ] {
        let answer = pool.send(operation, access_key, body.to_owned()).await;
        assert_eq!(answer.status(), 400, "{operation} {body}");
        let exception = format!("{exception}Exception");
        let header = |name: &str| answer.headers()[name].to_str().expect("text").to_owned();
        assert_eq!(header("x-amzn-errortype"), exception, "{operation} {body}");
        assert_eq!(header("content-type"), "application/x-amz-json-1.1");
        let body: serde_json::Value = answer.json().await.expect("JSON");
        assert_eq!(body["__type"], *exception);
        assert!(body["message"].is_string());
    }
}

#[tokio::test]
async fn absent_settings_of_a_client_have_defaults() {
    let pool = start().await;
    let body = json!({ "UserPoolId": pool.provisioned.service.pool_id, "ClientName": "new" });
    let created = pool.call("CreateUserPoolClient", body).await;
    let client = &created.expect("created")["UserPoolClient"];
    let flows = [
        "ALLOW_REFRESH_TOKEN_AUTH",
        "ALLOW_USER_SRP_AUTH",
        "ALLOW_CUSTOM_AUTH",
    ];
    assert_eq!(client["ExplicitAuthFlows"], json!(flows));
    assert_eq!(client["PreventUserExistenceErrors"], "LEGACY");
    // The configured lifetime is that of users.
    assert_eq!(client["AccessTokenValidity"], 3600);
    pool.register(EMAIL, PASSWORD).await;
    let tokens = &pool.sign_in(EMAIL, PASSWORD).await["AuthenticationResult"];
    assert_eq!(tokens["ExpiresIn"], 600);
}
