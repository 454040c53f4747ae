//! The secret of a job: known to its processes only, and proven to each other.
//!
//! | source | strength |
//! |---|---|
//! | given, `KUMI_JOB_SECRET`, `KUMI_JOB_SECRET_FILE` | a key |
//! | Open MPI's key for the job's transports | a key, known to all who can read the environment |
//! | a launcher's job number | separates jobs; easy to guess |
//! | none of the above | none |

use snow::resolvers::{CryptoResolver, DefaultResolver};
use snow::{Builder, HandshakeState};
use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use subtle::ConstantTimeEq;

/// Noise pattern. Each side proves the secret before any key is agreed on, as in the multilink
/// device.
const PATTERN: &str = "Noise_NNpsk0_25519_AESGCM_BLAKE2s";

/// Bytes of a handshake message without payload, in either direction: a public key and a tag.
pub const HANDSHAKE_BYTES: usize = 32 + TAG_BYTES;

/// Bytes that authentication adds to a message.
pub const TAG_BYTES: usize = 16;

/// Minimum length of a secret that a user chooses, in bytes (128 bits).
const BYTES_MIN: usize = 16;

/// Maximum number of bytes read from a file.
const FILE_BYTES_MAX: u64 = 4096;

/// Variables with a launcher's job number, most likely one first. A heterogeneous Slurm job uses
/// the leader's.
const JOB_NUMBERS: [&str; 7] = [
    "TORCHELASTIC_RUN_ID",
    "SLURM_JOB_ID_HET_GROUP_0",
    "SLURM_JOB_ID",
    "PBS_JOBID",
    "LSB_JOBID",
    "FLUX_JOB_ID",
    "PMIX_NAMESPACE",
];

/// Variable with 128 random bits that Open MPI's launcher draws for each job
/// (`orte_precondition_transports`).
const JOB_KEY: &str = "OMPI_MCA_orte_precondition_transports";

/// Secret that the processes of one job share.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret {
    key: [u8; 32],
    origin: String,
}

impl fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Secret({})", self.origin)
    }
}

impl Secret {
    /// Creates a secret that the user chose.
    ///
    /// # Errors
    /// It is too short.
    pub fn from_bytes(bytes: &[u8], origin: &str) -> Result<Self, String> {
        if bytes.len() < BYTES_MIN {
            let count = bytes.len();
            return Err(format!(
                "{origin} has {count} bytes: expected {BYTES_MIN} or more, for instance from `openssl rand -hex 16`"
            ));
        }
        Ok(Self::from_source(b"chosen", bytes, origin))
    }

    /// Returns the secret that the user has put into the environment, if there is one. It may be
    /// any bytes, UTF-8 or not.
    ///
    /// # Errors
    /// A variable is set but empty, the secret is too short, or its file cannot be read or can be
    /// read by others. None of these falls back to a weaker secret.
    pub fn from_user(variable: impl Fn(&str) -> Option<OsString>) -> Result<Option<Self>, String> {
        if let Some(secret) = variable("KUMI_JOB_SECRET") {
            if secret.is_empty() {
                return Err(
                    "KUMI_JOB_SECRET is empty: set it to the job's secret, for instance from \
                     `openssl rand -hex 16`, or unset it"
                        .to_owned(),
                );
            }
            return Self::from_bytes(secret.as_bytes(), "KUMI_JOB_SECRET").map(Some);
        }
        let Some(file) = variable("KUMI_JOB_SECRET_FILE") else {
            return Ok(None);
        };
        if file.is_empty() {
            return Err(
                "KUMI_JOB_SECRET_FILE is empty: set it to the path of the secret's file, or unset it"
                    .to_owned(),
            );
        }
        let file = Path::new(&file);
        let origin = format!("KUMI_JOB_SECRET_FILE ({})", file.display());
        let bytes = read_private(file).map_err(|error| format!("{origin}: {error}"))?;
        Self::from_bytes(bytes.trim_ascii(), &origin).map(Some)
    }

    /// Returns the secret that the launcher gives to all processes of the job, if any.
    pub fn from_launcher(variable: impl Fn(&str) -> Option<String>) -> Self {
        // `torchrun` without `--rdzv-id` sets the variable to "none".
        let value = |name: &str| variable(name).filter(|text| !text.is_empty() && text != "none");
        if let Some(text) = value(JOB_KEY) {
            return Self::from_source(b"launcher", text.as_bytes(), JOB_KEY);
        }
        let number = JOB_NUMBERS
            .iter()
            .find_map(|name| Some((*name, value(name)?)));
        match number {
            Some((name, text)) => Self::from_source(b"number", text.as_bytes(), name),
            None => Self::none(),
        }
    }

    /// Returns the value that stands for no secret. It is public.
    pub fn none() -> Self {
        Self::from_source(b"none", &[], "no secret")
    }

    fn from_source(kind: &[u8], bytes: &[u8], origin: &str) -> Self {
        let mut data = kind.to_vec();
        data.push(0);
        data.extend_from_slice(bytes);
        Self {
            key: keyed(b"kumi job secret 1", &data),
            origin: origin.to_owned(),
        }
    }

    /// Returns the source of the secret, for error messages.
    pub fn origin(&self) -> &str {
        &self.origin
    }

    /// Returns the hello that the listener with this card's key expects.
    pub fn hello(&self, card: &[u8; 16]) -> [u8; 16] {
        self.derive(b"hello", card)
    }

    /// Returns whether `hello` is the one that the listener with this card's key expects. The time
    /// for the comparison does not depend on the number of matching bytes.
    pub fn is_hello(&self, card: &[u8; 16], hello: &[u8; 16]) -> bool {
        self.hello(card).ct_eq(hello).into()
    }

    /// Returns the proof in the card with this key. It reveals a different secret before any rank
    /// connects.
    pub fn proof(&self, card: &[u8; 16]) -> [u8; 8] {
        self.derive(b"proof", card)
    }

    /// Returns the secret of the Wind sessions between the ranks whose cards have these keys. Only
    /// a process that has all cards and the job's secret can compute it.
    pub fn wind<'a>(&self, cards: impl Iterator<Item = &'a [u8; 16]>) -> [u8; 32] {
        let mut data = b"wind".to_vec();
        cards.for_each(|key| data.extend_from_slice(key));
        keyed(&self.key, &data)
    }

    fn derive<const N: usize>(&self, label: &[u8], card: &[u8; 16]) -> [u8; N] {
        let digest = keyed(&self.key, &[label, &card[..]].concat());
        let mut value = [0; N];
        value.copy_from_slice(&digest[..N]);
        value
    }

    /// Returns the handshake state of a rank that connects to rank 0.
    pub fn initiator(&self) -> Result<HandshakeState, snow::Error> {
        self.noise()?.build_initiator()
    }

    /// Returns the handshake state of rank 0.
    pub fn responder(&self) -> Result<HandshakeState, snow::Error> {
        self.noise()?.build_responder()
    }

    fn noise(&self) -> Result<Builder<'_>, snow::Error> {
        let builder = Builder::new(PATTERN.parse()?).psk(0, &self.key)?;
        builder.prologue(b"kumi cards 2")
    }
}

/// Returns the HMAC-BLAKE2s of `data`.
fn keyed(key: &[u8], data: &[u8]) -> [u8; 32] {
    let choice = &snow::params::HashChoice::Blake2s;
    let mut digest = [0; 32];
    match DefaultResolver.resolve_hash(choice) {
        Some(mut hash) => hash.hmac(key, data, &mut digest),
        // The pattern above uses the same function, so every handshake would fail as well.
        None => unreachable!("snow is built with BLAKE2s"),
    }
    digest
}

/// Reads a file. Fails if other users than its owner have access.
fn read_private(file: &Path) -> Result<Vec<u8>, String> {
    use std::io::Read;
    let handle = std::fs::File::open(file).map_err(|error| error.to_string())?;
    let mode = handle.metadata().map_err(|error| error.to_string())?;
    let mode = mode.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(format!(
            "mode {mode:o} lets others read or change it: expected 600 or 400 (chmod 600)"
        ));
    }
    let mut bytes = Vec::new();
    let result = handle.take(FILE_BYTES_MAX).read_to_end(&mut bytes);
    result.map_err(|error| error.to_string())?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;

    const GOOD: &str = "0123456789abcdef";

    fn variables<'a>(pairs: &'a [(&str, &str)]) -> impl Fn(&str) -> Option<String> + 'a {
        |name| {
            let pair = pairs.iter().find(|(key, _)| *key == name);
            pair.map(|(_, text)| (*text).to_owned())
        }
    }

    fn os<'a>(pairs: &'a [(&str, &str)]) -> impl Fn(&str) -> Option<OsString> + 'a {
        let text = variables(pairs);
        move |name| text(name).map(OsString::from)
    }

    #[test]
    fn secret__same_text_from_different_sources__gives_different_keys() {
        let user = Secret::from_user(os(&[("KUMI_JOB_SECRET", GOOD)])).unwrap();
        let sources = [
            user.unwrap(),
            Secret::from_launcher(variables(&[(JOB_KEY, GOOD)])),
            Secret::from_launcher(variables(&[("SLURM_JOB_ID", GOOD)])),
            Secret::from_launcher(variables(&[])),
        ];
        for (index, secret) in sources.iter().enumerate() {
            for earlier in &sources[..index] {
                assert_ne!(secret.key, earlier.key, "{secret:?} {earlier:?}");
            }
        }
        let both = [("SLURM_JOB_ID", "7"), (JOB_KEY, GOOD)];
        assert_eq!(Secret::from_launcher(variables(&both)), sources[1]);
        let elastic = [("TORCHELASTIC_RUN_ID", "none"), ("SLURM_JOB_ID", GOOD)];
        assert_eq!(Secret::from_launcher(variables(&elastic)), sources[2]);
        assert_eq!(Secret::from_user(os(&both)), Ok(None));
        assert!(!format!("{sources:?}").contains(GOOD));
    }

    #[test]
    fn secret__too_short_or_readable_by_others__is_refused_by_name() {
        let error = Secret::from_user(os(&[("KUMI_JOB_SECRET", "hello")])).unwrap_err();
        assert!(
            error.starts_with("KUMI_JOB_SECRET has 5 bytes: expected 16 or more"),
            "{error}"
        );
        let file = std::env::temp_dir().join(format!("kumi-secret-{}", std::process::id()));
        let path = file.to_str().unwrap().to_owned();
        let read = || Secret::from_user(os(&[("KUMI_JOB_SECRET_FILE", &path)]));
        assert!(read().unwrap_err().contains(&path));
        std::fs::write(&file, format!("{GOOD}\n")).unwrap();
        let mode = |mode| {
            let mode = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(&file, mode).unwrap();
        };
        mode(0o640);
        let error = read().unwrap_err();
        assert!(error.contains("mode 640 lets others read"), "{error}");
        mode(0o600);
        let chosen = Secret::from_bytes(GOOD.as_bytes(), "").unwrap();
        assert_eq!(read().unwrap().unwrap().key, chosen.key);
        std::fs::remove_file(file).unwrap();
    }

    #[test]
    fn secret__not_utf8__is_used_as_bytes() {
        let bytes = [0xff; 16];
        let variable = |expected: &'static str, bytes: &[u8]| {
            let value = OsStr::from_bytes(bytes).to_owned();
            move |name: &str| (name == expected).then(|| value.clone())
        };
        let read = Secret::from_user(variable("KUMI_JOB_SECRET", &bytes)).unwrap();
        assert_eq!(
            read.unwrap().key,
            Secret::from_bytes(&bytes, "").unwrap().key
        );
        // The same holds for a file's name. The file is opened, and the variable does not count as
        // unset.
        let missing = Secret::from_user(variable("KUMI_JOB_SECRET_FILE", b"/nowhere/\xff"));
        let missing = missing.unwrap_err();
        assert!(
            missing.starts_with("KUMI_JOB_SECRET_FILE (/nowhere/"),
            "{missing}"
        );
    }

    #[test]
    fn secret__set_but_empty__is_refused_by_name() {
        for name in ["KUMI_JOB_SECRET", "KUMI_JOB_SECRET_FILE"] {
            let error = Secret::from_user(os(&[(name, "")])).unwrap_err();
            assert!(error.starts_with(&format!("{name} is empty: ")), "{error}");
        }
    }

    #[test]
    fn hello__any_bit_flipped__is_refused() {
        let secret = Secret::from_bytes(GOOD.as_bytes(), "").unwrap();
        let right = secret.hello(&[1; 16]);
        assert!(secret.is_hello(&[1; 16], &right));
        assert!(!secret.is_hello(&[2; 16], &right));
        for bit in 0..128 {
            let mut wrong = right;
            wrong[bit / 8] ^= 1 << (bit % 8);
            assert!(!secret.is_hello(&[1; 16], &wrong), "bit {bit}");
        }
    }

    #[test]
    fn proof_and_hello__different_secrets__are_different() {
        let [first, second] = ["0123456789abcdef", "0123456789abcdeg"]
            .map(|text| Secret::from_bytes(text.as_bytes(), "").unwrap());
        assert_ne!(first.proof(&[1; 16]), second.proof(&[1; 16]));
        assert_ne!(first.hello(&[1; 16]), second.hello(&[1; 16]));
        assert_ne!(first.hello(&[1; 16]), first.hello(&[2; 16]));
        assert_ne!(first.hello(&[1; 16])[..8], first.proof(&[1; 16]));
    }
}
