//! A client as an application would be: no cookies, no redirects followed, one base address.

use std::net::SocketAddr;
use std::sync::Arc;

use http::Method;
use serde_json::Value;
use url::Url;

use crate::answer::Answer;
use crate::contract::Contract;
use crate::http_body::Multipart;

/// Speaks to one address. A clone shares its connections.
#[derive(Clone, Debug)]
pub struct Client {
    http: reqwest::Client,
    base: Url,
    token: Option<Arc<str>>,
    contract: Option<&'static Contract>,
}

/// A request being put together.
#[derive(Debug)]
#[must_use = "a request does nothing until it is sent"]
pub struct Request {
    asked: String,
    method: Method,
    path: String,
    builder: reqwest::RequestBuilder,
    contract: Option<&'static Contract>,
}

// === impl Client ===

impl Client {
    /// To an address, whatever it answers.
    ///
    /// # Panics
    /// If the base is not a URL.
    #[must_use]
    pub fn new(base: &str) -> Self {
        let http = reqwest::Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .build()
            .expect("a client without files to read can always be built");
        Self {
            http,
            base: Url::parse(base).expect("the base is a URL"),
            token: None,
            contract: None,
        }
    }

    /// To the gateway: each answer is held against the contract as it arrives.
    #[must_use]
    pub fn to_gateway(base: &str) -> Self {
        Self {
            contract: Some(Contract::shared()),
            ..Self::new(base)
        }
    }

    /// The same, with answers held against this copy of the contract.
    #[must_use]
    pub fn against(&self, contract: &'static Contract) -> Self {
        Self {
            contract: Some(contract),
            ..self.clone()
        }
    }

    /// The same, with a token on each request.
    #[must_use]
    pub fn with_token(&self, token: &str) -> Self {
        Self {
            token: Some(token.into()),
            ..self.clone()
        }
    }

    /// The address that it speaks to.
    #[must_use]
    pub fn base(&self) -> &Url {
        &self.base
    }

    /// The socket that it speaks to.
    ///
    /// # Panics
    /// If the base names a host that is no address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        let authority = self.base.authority().to_owned();
        authority
            .parse()
            .unwrap_or_else(|_| panic!("{authority} is not an address with a port"))
    }

    /// `GET`.
    pub fn get(&self, path: &str) -> Request {
        self.request(Method::GET, path)
    }

    /// `POST`.
    pub fn post(&self, path: &str) -> Request {
        self.request(Method::POST, path)
    }

    /// `PUT`.
    pub fn put(&self, path: &str) -> Request {
        self.request(Method::PUT, path)
    }

    /// Any method; the path may carry a query, or be a whole URL.
    ///
    /// # Panics
    /// If it is no path.
    pub fn request(&self, method: Method, path: &str) -> Request {
        let url = self.base.join(path).expect("the path is one");
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

// === impl Request ===

impl Request {
    /// With a header.
    pub fn header(self, name: &str, value: &str) -> Self {
        Self {
            builder: self.builder.header(name, value),
            ..self
        }
    }

    /// With a JSON body.
    pub fn json(self, body: &Value) -> Self {
        Self {
            builder: self.builder.json(body),
            ..self
        }
    }

    /// With a form (`application/x-www-form-urlencoded`).
    pub fn form(self, fields: &[(&str, &str)]) -> Self {
        Self {
            builder: self.builder.form(fields),
            ..self
        }
    }

    /// With a body of any type.
    pub fn body(self, content_type: &str, body: impl Into<reqwest::Body>) -> Self {
        Self {
            builder: self.builder.header("content-type", content_type).body(body),
            ..self
        }
    }

    /// With a multipart form.
    pub fn multipart(self, form: Multipart) -> Self {
        let (content_type, bytes) = form.finish();
        self.body(&content_type, bytes)
    }

    /// The same where a connection that breaks is what the test is about: `None` if no whole answer
    /// came.
    pub async fn try_send(self) -> Option<Answer> {
        let response = self.builder.send().await.ok()?;
        let (status, headers) = (response.status(), response.headers().clone());
        let body = response.bytes().await.ok()?;
        Some(Answer {
            asked: self.asked,
            status,
            headers,
            body,
        })
    }

    /// Sends it and reads the whole answer. An answer of the gateway that is not as the contract
    /// says fails the test here.
    ///
    /// # Panics
    /// If no answer comes, or one that the contract does not know.
    pub async fn send(self) -> Answer {
        let Self {
            asked,
            method,
            path,
            builder,
            contract,
        } = self;
        let response = match builder.send().await {
            Ok(response) => response,
            Err(error) => panic!("{asked}: no answer: {error:?}"),
        };
        let (status, headers) = (response.status(), response.headers().clone());
        let body = match response.bytes().await {
            Ok(body) => body,
            Err(error) => panic!("{asked}: {status}: the body ended early: {error:?}"),
        };
        let answer = Answer {
            asked,
            status,
            headers,
            body,
        };
        if let Some(contract) = contract {
            contract.hold(&method, &path, &answer);
        }
        answer
    }
}
