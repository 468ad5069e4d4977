"""Speeds of models on cards, predicted from data sheets and sizes: behind ``vidspec/models/recommended.yaml``."""
