use postern_common::decode::{Field, Value};

use super::{Route, Upstream, texts};

/// `[[test]]`: a request and what must become of it.
#[derive(Clone, Debug, PartialEq)]
pub struct RouteTest {
    /// The method.
    pub method: String,
    /// The target, as it would stand in the request line.
    pub target: String,
    /// The host; default `localhost`.
    pub host: String,
    /// Who sends it; default nobody.
    pub token: TestToken,
    /// The name of the route that it must take; not looked at without.
    pub route: Option<String>,
    /// The name of the upstream that it must be able to reach; not looked at without.
    pub upstream: Option<String>,
    /// `allow`, or the code of the refusal.
    pub decision: String,
}

/// Who sends a test's request. Nobody signs these tokens: they exist within a test only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TestToken {
    /// No token.
    None,
    /// A user in these groups with these scopes.
    User {
        /// Groups.
        groups: Vec<String>,
        /// Scopes.
        scopes: Vec<String>,
    },
    /// The service of this name.
    Service(String),
}

pub(super) fn read(field: Field<'_>, routes: &[Route], upstreams: &[Upstream]) -> Option<RouteTest> {
    field.object(|test| {
        let request = test.required("request", |field| {
            let text = field.string()?;
            let words = text.split_once(' ').filter(|(_, target)| !target.contains(' '));
            let words = words.map(|(method, target)| (method.to_owned(), target.to_owned()));
            words
                .or_else(|| field.fail("invalid_format", "must be a method and a target, such as GET /a?b=c"))
        });
        let host = test.or("host", "localhost".to_owned(), |field| field.text(1..=253));
        let token = test.or("token", TestToken::None, TestToken::read);
        let route = test.optional("route", |field| {
            let name = field.text(1..=100)?;
            let known = routes.iter().any(|route| route.name == name);
            if known {
                Some(name)
            } else {
                field.fail("unknown_route", format!("there is no route called {name}"))
            }
        });
        let upstream = test.optional("upstream", |field| {
            let name = field.text(1..=64)?;
            let known = upstreams.iter().any(|upstream| upstream.name == name);
            if known {
                Some(name)
            } else {
                field.fail("unknown_upstream", format!("there is no [upstream.{name}]"))
            }
        });
        let decision = test.required("decision", |field| {
            let code = field.text(1..=64)?;
            let known =
                code == "allow" || postern_common::Code::ALL.iter().any(|known| known.as_str() == code);
            if known {
                Some(code)
            } else {
                field.fail("invalid_choice", "must be allow or a code of PROBLEMS.md")
            }
        });
        let (method, target) = request?;
        Some(RouteTest { method, target, host, token, route, upstream, decision: decision? })
    })
}

impl TestToken {
    /// `"none"`, `"user"`, `"service:NAME"` or `{ groups = […], scopes = […] }` for a user.
    fn read(field: Field<'_>) -> Option<Self> {
        if let Value::String(text) = field.value() {
            return match (text.as_str(), text.strip_prefix("service:")) {
                ("none", _) => Some(Self::None),
                ("user", _) => Some(Self::User { groups: Vec::new(), scopes: Vec::new() }),
                (_, Some(name)) if !name.is_empty() => Some(Self::Service(name.to_owned())),
                _ => field.fail("invalid_choice", "must be none, user, service:NAME or a table"),
            };
        }
        field.object(|user| {
            Some(Self::User {
                groups: user.or("groups", Vec::new(), texts),
                scopes: user.or("scopes", Vec::new(), texts),
            })
        })
    }
}
