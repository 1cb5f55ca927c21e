"""What each server is known not to do, with the reason. Ours has none."""

GAPS = {"postern": {}, "moto": {}, "cognito-local": {}}
