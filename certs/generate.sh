#!/bin/sh
# generate.sh [DAYS]: creates, in this folder, certificates for development, ECDSA P-256 with file mode 0600. Not committed.
#   authority.pem, authority.key   an authority, created once, valid for ten years
#   server.pem, server.key         for localhost, 127.0.0.1 and ::1, valid for DAYS (default 90), renewed by each run
#   client.pem, client.key         for mutual TLS (client_ca in [listen.tls]), renewed too
set -eu

cd "$(dirname "$0")"
umask 077
command -v openssl > /dev/null || { echo "certs/generate.sh: needs openssl" >&2; exit 69; }

days=${1:-90}
case $days in '' | *[!0-9]*) echo "usage: certs/generate.sh [days]" >&2; exit 64 ;; esac

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# An existing authority is kept, so that clients that trust it continue to do so.
if [ ! -f authority.key ] || [ ! -f authority.pem ]; then
    openssl ecparam -name prime256v1 -genkey -noout -out "$work/authority.key"
    cat > "$work/authority.cnf" <<'END'
[req]
distinguished_name = name
x509_extensions = authority
prompt = no
[name]
CN = Postern development authority
[authority]
basicConstraints = critical, CA:TRUE, pathlen:0
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
END
    openssl req -x509 -new -key "$work/authority.key" -sha256 -days 3650 -config "$work/authority.cnf" \
        -out "$work/authority.pem"
    mv "$work/authority.key" "$work/authority.pem" .
fi

# Issues a certificate: name, extended key usage, subject alternative names.
issue() {
    name=$1 usage=$2 alternative=$3
    openssl ecparam -name prime256v1 -genkey -noout -out "$work/$name.key"
    openssl req -new -key "$work/$name.key" -subj "/CN=$name" -out "$work/$name.csr"
    cat > "$work/$name.ext" <<END
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = $usage
subjectAltName = $alternative
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
END
    openssl x509 -req -in "$work/$name.csr" -CA authority.pem -CAkey authority.key -set_serial "0x$(openssl rand -hex 16)" \
        -sha256 -days "$days" -extfile "$work/$name.ext" -out "$work/$name.pem" 2> /dev/null
    # The file contains the certificate chain: the certificate and its issuer's.
    cat authority.pem >> "$work/$name.pem"
    mv "$work/$name.key" "$work/$name.pem" .
}

issue server serverAuth "DNS:localhost, IP:127.0.0.1, IP:::1"
issue client clientAuth "DNS:client.localhost"

chmod 644 authority.pem server.pem client.pem
echo "certs: authority.pem, server.pem, client.pem and their keys; valid for $days days"
