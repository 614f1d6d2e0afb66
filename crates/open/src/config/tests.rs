//! Which options go together, and what is told of those that do not.

use super::*;
use crate::host::Silent;
use crate::source::{KeySource, VolumeKeyOrigin};

fn config(text: &str) -> OpenConfig {
    toml::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn source(text: &str) -> Result<VolumeSource> {
    config(text).source(&Silent, "/a".into())
}

#[test]
fn names_are_those_of_the_fields() {
    let names = OpenConfig::names();
    assert_eq!((names.len(), names[0], names[3]), (38, "type", "keyfile-offset"));
    assert!(!names.contains(&"more"));
    assert!(toml::from_str::<OpenConfig>("more = 1").unwrap_err().message().starts_with("unknown field `more`"));
}

#[test]
fn source_has_the_values_of_all_options() {
    let VolumeSource { options, io, threads, engine } = source(
        "type = \"plain\"\nkey-file = \"/k\"\nkeyfile-offset = 1\nkeyfile-size = 2\ncipher = \"serpent-xts-plain64\"\n\
         key-size = 512\nhash = \"sha512\"\nsector-size = 4096\niv-large-sectors = true\noffset = 3\nskip = 4\n\
         size = \"4K\"\nallow-discards = true\nallow-null-cipher = true\nintegrity-salvage-journal = true\n\
         io = \"sync\"\nthreads = 1024\nengine = \"afalg\"\nengine-threshold = \"1M\"\n",
    )
    .unwrap();
    assert_eq!((io, threads, engine), (IoMode::Sync, Some(1024), Some(EngineOptions { threshold: 1 << 20 })));
    let VolumeType::Plain(plain) = options.volume_type else { panic!("{:?}", options.volume_type) };
    assert_eq!((plain.cipher.to_string().as_str(), plain.key_len), ("serpent-xts-plain64", 64));
    assert_eq!((plain.offset.0, plain.skip.0, plain.size), (3, 4, Some(8)));
    assert!(plain.unit.bytes() == 4096 && plain.large_iv);
    assert!(matches!(options.key.source, KeySource::File(path) if path.as_os_str() == "/k"));
    assert_eq!((options.key.offset, options.key.size), (1, Some(2)));
    assert!(options.flags.allow_discards && options.policy.allow_null_cipher);
    assert!(options.journal.salvage && !options.journal.long && !options.zero_holes);

    let luks =
        source("volume-key-file = \"/v\"\nkey-size = 512\nholes = \"zero\"\nfreshness = \"/f\"").unwrap().options;
    assert!(matches!(luks.volume_type, VolumeType::Luks(Luks::Any)) && luks.zero_holes);
    let key = luks.key.volume_key.unwrap();
    assert!(matches!(key.origin, VolumeKeyOrigin::File(_)) && key.len == Some(64));
    assert!(luks.freshness.is_some_and(|freshness| !freshness.accept && !freshness.tags));
}

#[test]
fn plain_volume_is_opened_without_a_journal_as_scripts_ask() {
    assert!(source("type = \"plain\"\nintegrity-no-journal = true").is_ok());
    assert_eq!(source("type = \"raw\"\nintegrity-no-journal = true").unwrap_err().option, "integrity-no-journal");
}

#[test]
fn table_is_in_place_of_the_image() {
    let options = source("table = \"0 8 linear /b 0\"").unwrap().options;
    assert!(matches!(options.volume_type, VolumeType::Table(_)));
    assert_eq!(options.image.as_os_str(), "/b");
}

#[test]
fn options_that_do_not_go_together_are_refused() {
    for (text, option, sentence) in [
        ("type = \"x\"", "type", "Unrecognized metadata device type x."),
        ("type = \"raw\"\nkey-file = \"k\"", "key-file", "Option --key-file is not allowed with type raw."),
        ("type = \"raw\"\nholes = \"zero\"", "holes", "Option --holes is not allowed with type raw."),
        ("type = \"raw\"\nfreshness = \"f\"", "freshness", "Option --freshness is not allowed with type raw."),
        ("hash = \"sha1\"", "hash", "Option --hash is not allowed with type luks."),
        ("key-size = 256", "key-size", "Option --key-size is not allowed with type luks."),
        ("type = \"luks2\"\nsize = 8", "size", "Option --size is not allowed with type luks2."),
        ("type = \"plain\"\nheader = \"h\"", "header", "Option --header is not allowed with type plain."),
        ("type = \"plain\"\nexpect-uuid = 1", "expect-uuid", "Option --expect-uuid is not allowed with type plain."),
        ("table = \"0 8 zero\"\ntype = \"raw\"", "type", "Option --type is not allowed with --table."),
        ("table = \"0 8 zero\"\nkey-slot = 1", "key-slot", "Option --key-slot is not allowed with --table."),
        ("table = \"\"", "table", "Option --table is empty."),
        ("policy = \"/missing\"", "policy", "Device /missing does not exist or access denied."),
        ("keyfile-offset = 1", "keyfile-offset", "Option --keyfile-offset needs --key-file."),
        ("keyfile-size = 0", "keyfile-size", "Option --keyfile-size needs a number above zero."),
        ("freshness-tags = true", "freshness-tags", "Option --freshness-tags needs --freshness."),
        ("threads = 0", "threads", "Option --threads takes 1 to 1024."),
        ("threads = 1025", "threads", "Option --threads takes 1 to 1024."),
        ("engine-threshold = 1", "engine-threshold", "Option --engine-threshold needs --engine afalg."),
        (
            "engine = \"afalg\"\nengine-threshold = 0",
            "engine-threshold",
            "Option --engine-threshold needs a number above zero.",
        ),
        (
            "engine = \"afalg\"\nholes = \"zero\"",
            "engine",
            "Options --engine afalg and --holes zero cannot be combined.",
        ),
        ("volume-key-file = \"v\"\nkey-size = 255", "key-size", "Key size must be a multiple of 8 bits."),
    ] {
        let error = source(text).unwrap_err();
        assert_eq!((error.option, error.sentence("--").as_str()), (option, sentence), "{text}");
    }
}

#[test]
fn parameters_of_plain_volumes_are_checked() {
    for (text, option, sentence) in [
        ("cipher = \"x-y\"", "cipher", "No known cipher specification pattern detected in 'x-y'."),
        ("hash = \"x\"", "hash", "Hash 'x' is not available."),
        ("spdk-tweak = true\ncipher = \"aes-cbc-plain\"", "spdk-tweak", "Option --spdk-tweak needs the cipher "),
        ("sector-size = 513", "sector-size", "Unsupported encryption sector size: "),
        ("iv-large-sectors = true", "iv-large-sectors", "Option --iv-large-sectors needs --sector-size above 512."),
        ("offset = \"0x80000000000000\"", "offset", "The offset or the size exceeds 2^64 bytes."),
        ("size = \"0x80000000000000\"", "size", "The offset or the size exceeds 2^64 bytes."),
        ("size = 1\ndevice-size = 512", "device-size", "Options --device-size and --size cannot be combined."),
        ("device-size = 513", "device-size", "Device size must be multiple of 512 bytes sector."),
        ("device-size = 0", "device-size", "The size of the volume is zero."),
        ("size = 0", "size", "The size of the volume is zero."),
        ("key-size = 255", "key-size", "Key size must be a multiple of 8 bits."),
        (
            "key-size = 128",
            "key-size",
            "Cipher aes-xts-plain64 takes no key of 128 bits; it takes 256, 384 or 512 bits.",
        ),
    ] {
        let error = source(&format!("type = \"plain\"\n{text}")).unwrap_err();
        assert_eq!(error.option, option, "{text}");
        assert!(error.sentence("--").starts_with(sentence), "{text}: {}", error.sentence("--"));
    }
    let most = source("type = \"plain\"\noffset = \"0x7fffffffffffff\"\nsize = \"0x7fffffffffffff\"");
    assert!(most.is_ok(), "{:?}", most.err());
}

#[test]
fn policy_is_that_of_the_file_with_the_options() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let with = |policy: &str, text: &str| {
        std::fs::write(file.path(), policy).unwrap();
        config(&format!("policy = \"{}\"\n{text}", file.path().display())).open_options(&Silent, "/a".into())
    };
    let policy = with("uuid = \"u\"\n", "allow-null-iv = true\nrequire-cipher = \"aes-xts-plain64\"").unwrap().policy;
    assert_eq!((policy.expected_uuid.as_deref(), policy.required_ciphers.len()), (Some("u"), 1));
    assert!(policy.allow_null_iv && !policy.allow_null_cipher);
    let both = "Option require-cipher is not allowed with a policy that has cipher.";
    for (policy, text, sentence) in [
        ("cipher = [\"aes-xts-plain64\"]", "require-cipher = \"aes-xts-plain64\"", both),
        ("uuid = \"u\"", "expect-uuid = \"u\"", "Option expect-uuid is not allowed with a policy that has uuid."),
        ("data-blocks = 1", "", "A policy with data-blocks is allowed with dm-verity devices only."),
        ("uuid = \"u\"", "type = \"raw\"", "A policy with uuid, header-digest or pbkdf is not allowed with type raw."),
    ] {
        assert_eq!(with(policy, text).unwrap_err().to_string(), sentence);
    }
}

#[test]
fn options_of_a_user_are_checked_too() {
    type Set = fn(&mut MoreOptions);
    let cases: [(Set, &str); 5] = [
        (|more| more.tries = Some(0), "Option --tries needs a number above zero."),
        (
            |more| (more.link_vk_to_keyring, more.disable_keyring) = (vec!["@u::x".to_owned()], true),
            "Option --link-vk-to-keyring is not allowed with --disable-keyring.",
        ),
        (|more| more.external_tokens_path = Some("a".into()), "Failed to set external tokens path a."),
        (|more| more.link_vk_to_keyring = vec!["x".to_owned()], "Invalid --link-vk-to-keyring value 'x'."),
        (
            |more| more.volume_key_keyring = Some("1".to_owned()),
            "Only one of --volume-key-file and --volume-key-keyring is allowed.",
        ),
    ];
    for (set, sentence) in cases {
        let mut config = config("volume-key-file = \"v\"");
        set(&mut config.more);
        assert_eq!(config.source(&Silent, "/a".into()).unwrap_err().sentence("--"), sentence);
    }
    let mut raw = config("type = \"raw\"");
    raw.more.token_only = true;
    assert_eq!(raw.source(&Silent, "/a".into()).unwrap_err().option, "token-only");
}
