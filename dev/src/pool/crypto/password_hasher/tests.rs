use argon2::{AssociatedData, ParamsBuilder};
use postern_common::testing;

use super::*;

const LOW_COST_HASHING: HashingSettings = HashingSettings {
    memory_kib: 64,
    passes: 1,
    threads: 1,
    queue: 1,
};

#[tokio::test]
async fn hash_matches_only_its_password() {
    let hasher = PasswordHasher::start(LOW_COST_HASHING).expect("threads");
    let hash = hasher.hash(&"Correct-Horse-9".into()).await.expect("hash");
    assert!(hash.starts_with("$argon2id$v=19$m=64,t=1,p=1$"), "{hash}");
    let matching = hasher
        .verify(&"Correct-Horse-9".into(), Some(&hash))
        .await
        .expect("verified");
    assert_eq!(
        (matching.outcome, matching.rehashed),
        (PasswordMatch::Match, None)
    );
    let wrong = hasher
        .verify(&"correct-horse-9".into(), Some(&hash))
        .await
        .expect("verified");
    assert_eq!(wrong.outcome, PasswordMatch::Mismatch);
    let before = hasher.hash_counter().load(Ordering::Relaxed);
    let unknown = hasher
        .verify(&"Correct-Horse-9".into(), None)
        .await
        .expect("verified");
    assert_eq!(unknown.outcome, PasswordMatch::Mismatch);
    assert_eq!(
        hasher.hash_counter().load(Ordering::Relaxed),
        before + 1,
        "an unknown user costs one hash"
    );
}

#[tokio::test]
async fn hash_of_other_cost_is_replaced_on_match() {
    let hasher = PasswordHasher::start(LOW_COST_HASHING).expect("threads");
    let dearer = PasswordHasher::start(HashingSettings {
        passes: 2,
        ..LOW_COST_HASHING
    })
    .expect("threads");
    let old = hasher.hash(&"secret".into()).await.expect("hash");
    let verified = dearer
        .verify(&"secret".into(), Some(&old))
        .await
        .expect("verified");
    assert!(verified.rehashed.expect("a new hash").contains("t=2"));
    let verified = dearer
        .verify(&"Secret".into(), Some(&old))
        .await
        .expect("verified");
    assert_eq!(verified.rehashed, None);
}

#[tokio::test]
async fn requests_beyond_queue_are_rejected_before_hashing() {
    let slow = HashingSettings {
        memory_kib: 32 << 10,
        passes: 2,
        threads: 1,
        queue: 2,
    };
    let hasher = PasswordHasher::start(slow).expect("threads");
    let attempts = (0..20).map(|_| {
        let hasher = hasher.clone();
        tokio::spawn(async move {
            hasher
                .hash(&"secret".into())
                .await
                .map_err(|error| error.kind())
        })
    });
    let attempts: Vec<_> = attempts.collect();
    let mut refused = 0;
    for attempt in attempts {
        match attempt.await.expect("no panic") {
            Ok(_) => {}
            Err(kind) => {
                assert_eq!(kind, ExceptionKind::TooManyRequests);
                refused += 1;
            }
        }
    }
    assert!(
        (15..=18).contains(&refused),
        "one hashing, two queued, {refused} rejected"
    );
}

/// Known answers of the Password Hashing Competition: one case at version 19 and one at version 16,
/// with secret and associated data.
#[test]
fn argon2id_matches_published_vectors() {
    let file = testing::vectors("argon2/argon2id");
    let text = std::fs::read_to_string(&file).expect("a readable file");
    let tags: Vec<Vec<u8>> = text
        .lines()
        .filter_map(|line| line.trim().strip_prefix("Tag:"))
        .map(hex)
        .collect();
    assert!(!tags.is_empty(), "{} has no tag", file.display());
    let mut params = ParamsBuilder::new();
    params
        .m_cost(32)
        .t_cost(3)
        .p_cost(4)
        .data(AssociatedData::new(&[4; 12]).expect("12 bytes"));
    let params = params.build().expect("parameters");
    let versions = text
        .lines()
        .filter_map(|line| line.strip_prefix("Argon2id version number "));
    for (version, tag) in versions.zip(&tags) {
        let version = if version.trim() == "19" {
            Version::V0x13
        } else {
            Version::V0x10
        };
        let argon2 = Argon2::new_with_secret(&[3; 8], Algorithm::Argon2id, version, params.clone())
            .expect("secret");
        let mut out = [0; 32];
        argon2
            .hash_password_into(&[1; 32], &[2; 16], &mut out)
            .expect("hash");
        assert_eq!(&out[..], &tag[..]);
    }
}

fn hex(text: &str) -> Vec<u8> {
    text.split_whitespace()
        .map(|byte| u8::from_str_radix(byte, 16).expect("hexadecimal"))
        .collect()
}
