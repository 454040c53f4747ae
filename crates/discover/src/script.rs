//! A shell for tests, whose agents follow a script.

use std::path::PathBuf;

/// A shell that runs a script in place of `kumi topo probe`. Its file is removed with the value.
pub(crate) struct Script(PathBuf);

impl Script {
    /// Writes a script that reports an address, and then handles each line of its input by `body`.
    /// The variable `host` has the name of the host, and `line` the request. The last byte of the
    /// address is the length of the name.
    pub(crate) fn new(test: &str, body: &str) -> Self {
        let name = format!("kumi-discover-{test}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let text = format!(
            "host=$1\n\
             echo '{{\"here\":{{\"port\":9,\"addresses\":[{{\"address\":\"10.0.0.'${{#host}}'\",\"bits\":24}}]}}}}'\n\
             while read -r line; do\n{body}\ndone\n"
        );
        std::fs::write(&path, text).unwrap();
        Self(path)
    }

    /// Returns the value of `--shell`.
    pub(crate) fn shell(&self) -> String {
        format!("sh {}", self.0.display())
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
