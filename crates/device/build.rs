//! Compiles the programs of `bpf/multilink`. If it cannot, `kumi link up --datapath kernel` reports
//! that this build has none.

fn main() {
    let layout = kumi_embed::hash_bpf("multilink", &["intf.h", "stream.h"]);
    println!("cargo:rustc-env=KUMI_MULTILINK_LAYOUT={layout}");
    kumi_embed::compile_bpf("multilink", "`kumi link up` will have no kernel data path");
}
