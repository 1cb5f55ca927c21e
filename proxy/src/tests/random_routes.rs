//! Random routes to the upstreams `one` and `two`, some of which are invalid.

use super::Choices;

/// An external authorization that does not answer.
pub(crate) const EXTERNAL_AUTHORIZATION: &str =
    "authorize = { url = \"http://127.0.0.1:9/check\" }\n";

const PATHS: [&str; 10] = [
    "/a",
    "/a/",
    "/a/{x}",
    "/a/b",
    "/a/b/*",
    "/*",
    "/b/{x}/c",
    "/b/*",
    "/{x}/b",
    "/{x}/{y}/c",
];

const METHOD_LISTS: [&str; 5] = [
    "[\"PROPFIND\"]",
    "[\"GET\"]",
    "[\"POST\", \"GET\"]",
    "[\"DELETE\"]",
    "[\"*\"]",
];

const POLICIES: [&str; 15] = [
    "\"public\"",
    "{ users = \"any\" }",
    "{ services = \"any\" }",
    "{ users = \"any\", services = [\"auth\"] }",
    "{ services = [\"auth\", \"notify\"] }",
    "{ services = { allow = [\"auth\"], scopes = [\"read\"] } }",
    "{ users = { scopes = [\"read\"] } }",
    "{ users = { scopes = [\"read\", \"write\"], groups = [\"admin\"] } }",
    "{ users = { groups = [\"admin\", \"support\"] }, services = [\"auth\"] }",
    "{ users = { claims = { tier = 2 } } }",
    "{ users = { claims = { tier = 1 } } }",
    "{ users = { claims = { tier = [1, 2] } } }",
    "{ users = { claims = { realm = { roles = \"a\" }, tier = 2 } } }",
    "{ users = { owner = \"x\", groups = [\"admin\"] } }",
    "{ users = { owner = \"y\" }, services = \"any\" }",
];

const CONDITIONS: [&str; 6] = [
    "",
    "hosts = [\"a.test\"]\n",
    "hosts = [\"*.a.test\", \"b.test\"]\n",
    "headers = { x-kind = \"one\" }\n",
    "headers = { x-kind = true }\nquery = { v = \"2\" }\n",
    "query = { v = true }\n",
];

const EXTRAS: [&str; 9] = [
    "",
    "ignore_case = true\n",
    "access = { allow = [\"10.0.0.0/8\"], deny = [\"10.1.0.0/16\"] }\n",
    "access = { deny = [\"10.1.0.0/16\", \"2001:db8::/32\"] }\n",
    "report_only = true\n",
    "access = { deny = [\"10.1.0.0/16\"] }\nreport_only = true\n",
    "rewrite = { add = \"/v1\" }\n",
    "cors = { origins = [\"https://page.test\"] }\n",
    EXTERNAL_AUTHORIZATION,
];

const TARGETS: [&str; 5] = [
    "upstream = \"one\"\n",
    "upstream = \"two\"\n",
    "upstream = { one = 90, two = 10 }\n",
    "redirect = { to = \"https://{host}{path}{query}\", status = 308 }\n",
    "respond = { status = 200, body = \"ok\" }\n",
];

impl Choices {
    pub(crate) fn parts(&mut self) -> [&'static str; 6] {
        let target = self.of(&TARGETS);
        [
            self.of(&PATHS),
            self.of(&METHOD_LISTS),
            self.of(&POLICIES),
            self.of(&CONDITIONS),
            match target.starts_with("upstream") {
                true => self.of(&EXTRAS),
                false => "",
            },
            target,
        ]
    }

    /// Changes, adds or removes a part.
    pub(crate) fn mutate(&mut self, routes: &mut Vec<[&'static str; 6]>) {
        let at = self.below(routes.len());
        match self.below(6) {
            0 => routes.push(self.parts()),
            1 if routes.len() > 1 => {
                routes.remove(at);
            }
            2 => routes.swap(at, 0),
            _ => {
                let part = self.below(4);
                routes[at][part] = self.parts()[part];
            }
        }
    }
}

pub(crate) fn routes_text(routes: &[[&str; 6]]) -> String {
    routes
        .iter()
        .enumerate()
        .map(
            |(number, [path, methods, policy, conditions, extra, target])| {
                format!(
                    "[[route]]\nname = \"r{number}\"\npath = \"{path}\"\nmethods = {methods}\n\
                 policy = {policy}\n{conditions}{extra}{target}\n"
                )
            },
        )
        .collect()
}
