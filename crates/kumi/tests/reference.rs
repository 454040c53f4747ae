//! Compares the generated page of options with the command.

use std::process::Command;

#[test]
fn options_reference__printed_again__matches_the_page() {
    let output = Command::new(env!("CARGO_BIN_EXE_kumi"))
        .args(["man", "--markdown"])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let page = include_str!("../../../docs/reference/options.md");
    assert!(
        text == page,
        "write the page again: kumi man --markdown > docs/reference/options.md"
    );
}
