//! An HTTP client like an application's: no cookies, no redirects, one base URL.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::Method;
use serde::Serialize;
use serde_json::Value;
use url::Url;

use crate::answer::{Answer, Refusal};
use crate::contract::Contract;
use crate::sensitive;
use crate::wait;

/// Time for which a connection without a request is kept. The services keep one for 10 s.
const IDLE_TIMEOUT: Duration = Duration::from_secs(5);

/// A client of one base URL. Clones share connections.
#[derive(Clone, Debug)]
pub struct Client {
    http: reqwest::Client,
    base: Url,
    token: Option<Arc<str>>,
    contract: Option<&'static Contract>,
}

/// A request that is being built.
#[derive(Debug)]
#[must_use = "a request does nothing until it is sent"]
pub struct Request {
    asked: String,
    method: Method,
    path: String,
    builder: reqwest::RequestBuilder,
    contract: Option<&'static Contract>,
}

impl Client {
    /// Creates a client that accepts any response.
    pub fn new(base: &str) -> Self {
        let http = reqwest::Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            // Shorter than the services keep an idle connection: a POST on a closed one is not repeated.
            .pool_idle_timeout(IDLE_TIMEOUT)
            .build()
            .expect("the client can be built");
        Self {
            http,
            base: Url::parse(base).expect("a base URL"),
            token: None,
            contract: None,
        }
    }

    /// Creates a client of the gateway: every response is checked against the contract.
    pub fn to_gateway(base: &str) -> Self {
        Self {
            contract: Some(Contract::shared()),
            ..Self::new(base)
        }
    }

    /// Returns a client whose responses are checked against `contract`.
    pub fn against(&self, contract: &'static Contract) -> Self {
        Self {
            contract: Some(contract),
            ..self.clone()
        }
    }

    /// Returns a client that sends a token with each request.
    pub fn with_token(&self, token: &str) -> Self {
        sensitive::record("bearer token", token);
        Self {
            token: Some(token.into()),
            ..self.clone()
        }
    }

    /// Returns the base URL.
    pub fn base(&self) -> &Url {
        &self.base
    }

    /// Returns the socket address of the base URL.
    pub fn address(&self) -> SocketAddr {
        let address = self.base.authority().parse();
        address.expect("an address with a port")
    }

    /// Creates a `GET` request.
    pub fn get(&self, path: &str) -> Request {
        self.request(Method::GET, path)
    }

    /// Creates a `POST` request.
    pub fn post(&self, path: &str) -> Request {
        self.request(Method::POST, path)
    }

    /// Sends a `POST` request with a JSON body and reads the response.
    pub async fn post_json(&self, path: &str, body: &Value) -> Answer {
        self.post(path).json(body).send().await
    }

    /// Sends a `POST` request with a JSON body, and asserts the status of the response.
    pub async fn posted(&self, path: &str, body: &Value, status: u16) -> Answer {
        self.post_json(path, body).await.expect(status)
    }

    /// Sends a `POST` request with a JSON body, and asserts the problem of the response.
    pub async fn refuses(&self, path: &str, body: &Value, status: u16, code: &str) -> Refusal {
        self.post_json(path, body).await.problem(status, code)
    }

    /// Sends a `GET` request, and asserts the status of the response.
    pub async fn fetch(&self, path: &str, status: u16) -> Answer {
        self.get(path).send().await.expect(status)
    }

    /// Sends a `GET` request, and asserts the problem of the response.
    pub async fn denied(&self, path: &str, status: u16, code: &str) -> Refusal {
        self.get(path).send().await.problem(status, code)
    }

    /// Returns the JSON document of a path.
    pub async fn read(&self, path: &str) -> Value {
        self.fetch(path, 200).await.json()
    }

    /// Returns the record of a notification once it is neither scheduled nor queued.
    pub async fn settled(&self, location: &str) -> Value {
        wait::answer(async || {
            let record = self.read(location).await;
            let waits = ["SCHEDULED", "QUEUED"].map(Value::from);
            match waits.contains(&record["status"]) {
                true => Err(format!("{location} waits: {record}")),
                false => Ok(record),
            }
        })
        .await
    }

    /// Returns the token, if there is one.
    pub fn token(&self) -> Option<&str> {
        self.token.as_deref()
    }

    /// Creates a `PUT` request.
    pub fn put(&self, path: &str) -> Request {
        self.request(Method::PUT, path)
    }

    /// Creates a `DELETE` request.
    pub fn delete(&self, path: &str) -> Request {
        self.request(Method::DELETE, path)
    }

    /// Creates a request with any method. The path may contain a query, or be a complete URL.
    pub fn request(&self, method: Method, path: &str) -> Request {
        let url = self.base.join(path).expect("a valid path");
        let mut builder = self.http.request(method.clone(), url.clone());
        if let Some(token) = &self.token {
            builder = builder.bearer_auth(token);
        }
        let asked = format!("{method} {path}");
        Request {
            asked,
            method,
            path: url.path().to_owned(),
            builder,
            contract: self.contract,
        }
    }
}

impl Request {
    /// Adds a header.
    pub fn header(self, name: &str, value: &str) -> Self {
        Self {
            builder: self.builder.header(name, value),
            ..self
        }
    }

    /// Sets a JSON body.
    pub fn json(self, body: &Value) -> Self {
        sensitive::record_request(body);
        Self {
            builder: self.builder.json(body),
            ..self
        }
    }

    /// Sets a form body (`application/x-www-form-urlencoded`).
    pub fn form<F: Serialize + ?Sized>(self, fields: &F) -> Self {
        Self {
            builder: self.builder.form(fields),
            ..self
        }
    }

    /// Sets a body of any type.
    pub fn body(self, content_type: &str, body: impl Into<reqwest::Body>) -> Self {
        Self {
            builder: self.builder.header("content-type", content_type).body(body),
            ..self
        }
    }

    /// Sends the request, for tests of broken connections. Returns `None` without a complete
    /// response.
    pub async fn try_send(self) -> Option<Answer> {
        receive(self.builder, self.asked).await.ok()
    }

    /// Sends the request and reads the complete response. A response of the gateway that violates
    /// the contract fails the test.
    pub async fn send(self) -> Answer {
        let asked = self.asked.clone();
        let answer = receive(self.builder, self.asked).await;
        let answer = answer.unwrap_or_else(|error| panic!("{asked}: no answer: {error:?}"));
        sensitive::record_response(&answer.body);
        if let Some(contract) = self.contract {
            contract.assert_conforms(&self.method, &self.path, &answer);
        }
        answer
    }
}

async fn receive(request: reqwest::RequestBuilder, asked: String) -> reqwest::Result<Answer> {
    let response = request.send().await?;
    let (status, headers) = (response.status(), response.headers().clone());
    let body = response.bytes().await?;
    Ok(Answer {
        asked,
        status,
        headers,
        body,
    })
}
