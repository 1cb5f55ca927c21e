//! Differential test: mutated tokens that this verifier accepts are accepted by jose,
//! aws-jwt-verify and `PyJWT` (`tests/peers/jwt/install` installs them).

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use fastrand::Rng;
use serde_json::{Value, json};

use super::fixtures::{Behaviour, OTHER_RSA, RSA, Server, Signer, issuers};
use crate::Clock;
use crate::testing::skipped;
use crate::token::{Verifier, VerifierOptions};

const POOL: &str = "us-west-2_Peers0001";
const ISSUER: &str = "https://cognito-idp.us-west-2.amazonaws.com/us-west-2_Peers0001";
const CLIENT: &str = "peers-client";
const TOKENS: usize = 12_000;

/// JSON values, including some that parsers interpret differently, between two spaces or line breaks.
const VALUES: &str = r#"null  true  false  0  -1  -0  1  1.5  1e3  1E400  18446744073709551616  9007199254740993
9223372036854775807  ""  " "  "x"  "access"  "id"  "peers-client"  "k1"  "RS256"  "none"  "\u0061ccess"  "\ud800"
"\ud83d\ude00"  "é"  "😀"  "a\u0000b"  []  {}  ["peers-client"]  [1]  {"a":{"b":[]}}  [[[[]]]]"#;

/// Text that is inserted into JSON before it is signed, after each `|`.
const SNIPPETS: &str = "| |\n|\t|\r|\u{b}|\u{a0}|\u{feff}|,|:|\"|\\|0|.0|e5|-|+|NaN|/**/|'|{|}|\0|\"sub\":\"x\",|\"a\":1,";

/// Names of claims. Without `scope`, which is also accepted as a list: aws-jwt-verify requires text.
const NAMES: &str = "iss,sub,aud,exp,nbf,iat,jti,token_use,client_id,username,cognito:groups,auth_time,azp,nonce,\
    custom:service_id,version,origin_jti,a,,__proto__,constructor";

const HEADER_NAMES: &str = "alg,kid,typ,cty,crit,jku,jwk,x5u,x5c,x5t,x5t#S256,b64,zip,enc,epk,apu,a,,__proto__,\
    constructor";

/// Named members in order, with the text of their values.
type Members = Vec<(String, String)>;

struct Corpus {
    random: Rng,
    now_s: i64,
    signers: [(Signer, &'static str); 2],
}

impl Corpus {
    fn new(now_s: i64) -> Self {
        let signers = [(Signer::ec(), "k1"), (Signer::ed(), "k2")];
        Self {
            // The same tokens in every run.
            random: Rng::with_seed(7),
            now_s,
            signers,
        }
    }

    fn jwks(&self) -> Value {
        let keys = self
            .signers
            .iter()
            .map(|(signer, key_id)| signer.jwk(key_id));
        let keys: Vec<Value> = keys.chain([RSA.jwk("k3")]).collect();
        json!({"keys": keys})
    }

    fn claims(&mut self) -> Members {
        let instant = |ahead: i64| (self.now_s + ahead).to_string();
        let claims = [
            ("iss", format!("\"{ISSUER}\"")),
            ("sub", "\"3a1c\"".into()),
            ("token_use", "\"access\"".into()),
            ("client_id", format!("\"{CLIENT}\"")),
            ("username", "\"ada\"".into()),
            ("scope", "\"openid\"".into()),
            ("iat", instant(-10)),
            ("exp", instant(7200)),
            ("jti", "\"j\"".into()),
        ];
        claims.map(|(name, value)| (name.to_owned(), value)).into()
    }

    /// Generates a token of one of eight kinds.
    fn token(&mut self, kind: usize) -> String {
        let (mut header, mut claims) = (Vec::new(), self.claims());
        let signer = self.random.usize(..20);
        let key_id = self.signers.get(signer % 3).map_or("k3", |(_, id)| id);
        for (name, value) in [("alg", self.signer(key_id).alg()), ("kid", key_id)] {
            header.push((name.to_owned(), format!("\"{value}\"")));
        }
        match kind {
            0 => self.change(&mut header, HEADER_NAMES),
            1 | 2 => self.change(&mut claims, NAMES),
            3 => claims.swap(0, 5),
            _ => {}
        }
        let (mut header, mut claims) = (text(&header), text(&claims));
        match kind {
            3 => claims = claims.replace(',', " ,\n\t"),
            4 => self.spoil(&mut header),
            5 => self.spoil(&mut claims),
            _ => {}
        }
        let by = match kind {
            6 => ["k1", "k2", "k3", "other"][self.random.usize(..4)],
            _ => key_id,
        };
        let token = self.signer(by).raw(header.as_bytes(), claims.as_bytes());
        if kind == 7 { self.edit(token) } else { token }
    }

    fn signer(&self, key_id: &str) -> &Signer {
        match key_id {
            "k1" => &self.signers[0].0,
            "k2" => &self.signers[1].0,
            "k3" => &RSA,
            _ => &OTHER_RSA,
        }
    }

    /// Removes, replaces, repeats or adds a member.
    fn change(&mut self, members: &mut Members, names: &str) {
        let names: Vec<&str> = names.split(',').collect();
        let values = VALUES.split("  ").flat_map(|line| line.split('\n'));
        let values: Vec<&str> = values.collect();
        for _ in 0..=self.random.usize(..2) {
            let name = names[self.random.usize(..names.len())].to_owned();
            let ahead = [-100_000, -600, 600, 100_000];
            let value = match self.random.usize(..4) {
                0 => (self.now_s + ahead[self.random.usize(..4)]).to_string(),
                _ => values[self.random.usize(..values.len())].to_owned(),
            };
            let known = members.iter().position(|(known, _)| *known == name);
            match (known, self.random.usize(..4)) {
                (Some(place), 0) => drop(members.remove(place)),
                (Some(_), 1) | (None, _) => members.push((name, value)),
                (Some(place), _) => members[place].1 = value,
            }
        }
    }

    /// Inserts, removes or repeats text at random.
    fn spoil(&mut self, text: &mut String) {
        let mut at = self.random.usize(..text.len() + 1);
        while !text.is_char_boundary(at) {
            at -= 1;
        }
        match self.random.usize(..3) {
            0 if at < text.len() => drop(text.remove(at)),
            1 => text.insert_str(at, &text[at..].chars().take(3).collect::<String>()),
            _ => {
                let snippets: Vec<&str> = SNIPPETS.split('|').skip(1).collect();
                text.insert_str(at, snippets[self.random.usize(..snippets.len())]);
            }
        }
    }

    fn edit(&mut self, mut token: String) -> String {
        const CHARACTERS: &[u8] =
            b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.=+/ \n\t%~";
        // Edits at the end change the signature's last character, which has unused bits.
        let at = match self.random.usize(..3) {
            0 => token.len() - 1,
            _ => self.random.usize(..token.len()),
        };
        let character = char::from(CHARACTERS[self.random.usize(..CHARACTERS.len())]);
        match self.random.usize(..4) {
            0 => drop(token.remove(at)),
            1 => token.insert(at, character),
            2 => token.push(character),
            _ => token.replace_range(at..=at, &character.to_string()),
        }
        token
    }
}

fn text(members: &Members) -> String {
    let member = |(name, value): &(String, String)| format!("{}:{value}", json!(name));
    let members: Vec<String> = members.iter().map(member).collect();
    format!("{{{}}}", members.join(","))
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/peers/jwt")
}

async fn our_verdicts(jwks_text: &str, tokens: &[String]) -> Vec<bool> {
    let server = Server::start(Behaviour::Serve(jwks_text.to_owned())).await;
    let mut pools = issuers(&server.url, &server.url);
    pools.truncate(1);
    ISSUER.clone_into(&mut pools[0].issuer);
    pools[0].client_ids = vec![CLIENT.to_owned()];
    let options = VerifierOptions {
        refetch_interval: Duration::from_millis(1),
        ..VerifierOptions::default()
    };
    let verifier = Verifier::new(pools, options);
    let mut verdicts = Vec::new();
    for token in tokens {
        verdicts.push(verifier.verify(token).await.is_ok());
    }
    verdicts
}

#[tokio::test]
async fn accepted_tokens_are_accepted_by_other_libraries() {
    if !folder().join("../../.peers/jwt/installed").exists() {
        let name = "accepted_tokens_are_accepted_by_other_libraries";
        return skipped(name, "run tests/peers/jwt/install first");
    }
    let mut corpus = Corpus::new(Clock::system().now().unix_seconds());
    let tokens: Vec<String> = (0..TOKENS).map(|n| corpus.token(n % 8)).collect();
    let ours = our_verdicts(&corpus.jwks().to_string(), &tokens).await;
    let document = json!({
        "issuer": ISSUER, "poolId": POOL, "clientId": CLIENT, "leewaySeconds": 5, "jwks": corpus.jwks(), "tokens": tokens,
    });
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), document.to_string()).expect("written");
    let output = Command::new(folder().join("run")).arg(file.path()).output();
    let output = output.expect("the peers run");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let accepted = ours.iter().filter(|accepted| **accepted).count();
    assert!(
        (TOKENS / 10..TOKENS / 2).contains(&accepted),
        "{accepted} of {TOKENS}: the mutations change too little or too much"
    );
    let lines = String::from_utf8(output.stdout).expect("UTF-8");
    assert_eq!(lines.lines().count(), 3, "each of three libraries reports");
    for line in lines.lines() {
        let peer: Value = serde_json::from_str(line).expect("JSON");
        let theirs = peer["verdicts"].as_str().expect("verdicts");
        assert_eq!(theirs.len(), TOKENS);
        let name = format!("{} {}", peer["peer"], peer["version"]);
        let accepts = theirs.matches('1').count();
        println!("{name}: we accept {accepted}, it accepts {accepts}");
        let all = tokens.iter().zip(&ours).zip(theirs.chars());
        let mut stricter = all.filter(|((_, ours), theirs)| **ours && *theirs == '0');
        let first = stricter.next().map(|((token, _), _)| token);
        assert_eq!(
            first,
            None,
            "{name} refuses this one and {} more",
            stricter.count()
        );
    }
}
